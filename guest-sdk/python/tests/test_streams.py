"""Tests of streamed bodies and server-sent events."""

import unittest

from weir import StatusError, gather
from weir.http import Event, EventStream, NotAllowed, Request, Response, answer


def ask(handler):
    return answer(handler, Request())


class StreamTests(unittest.TestCase):
    def test_iterators_are_streamed_with_the_type_of_their_first_chunk(self):
        for given, content_type, text in [
            (iter(["a", "ü", ""]), "text/plain; charset=utf-8", "aü"),
            ((bytes([65 + n]) for n in range(3)), "application/octet-stream", "ABC"),
            (iter([]), "text/plain; charset=utf-8", ""),
        ]:
            response = ask(lambda _, given=given: given)
            self.assertEqual(response.headers, [("content-type", content_type)])
            self.assertEqual(response.text(), text)
        typed = ask(lambda _: Response(iter(["a,b"]), 201, {"content-type": "text/csv"}))
        self.assertEqual((typed.status, typed.headers, typed.text()), (201, [("content-type", "text/csv")], "a,b"))

    def test_handler_may_be_a_generator(self):
        def count(request):
            for n in range(3):
                yield f"{n} "

        self.assertEqual(ask(count).text(), "0 1 2 ")

    def test_asynchronous_generators_are_streamed(self):
        async def one(n):
            return n

        async def count(request):
            try:
                for n in range(2):
                    yield str(await gather(one(n), one(-n)))
            finally:
                ended.append(True)

        ended = []
        self.assertEqual((ask(count).text(), ended), ("[0, 0][1, -1]", [True]))

    def test_iterator_advances_one_chunk_at_a_time(self):
        def count(request):
            for n in range(3):
                made.append(n)
                yield str(n)

        made = []
        chunks = iter(ask(count).body)
        self.assertEqual(made, [0], "the first chunk decides about the status")
        self.assertEqual([next(chunks), made], [b"0", [0]])
        self.assertEqual([next(chunks), made], [b"1", [0, 1]])

    def test_closed_body_closes_its_generator(self):
        def endless(request):
            try:
                while True:
                    yield "x"
            finally:
                ended.append(True)

        ended = []
        response = ask(endless)
        next(iter(response.body))
        response.body.close()
        self.assertEqual(ended, [True])

    def test_error_before_the_first_chunk_is_the_response(self):
        def missing(request):
            raise StatusError(404, "nothing here")
            yield

        def late(request):
            yield "a"
            raise StatusError(404, "nothing here")

        self.assertEqual(ask(missing).status, 404)
        self.assertEqual(ask(lambda _: EventStream(missing(None))).status, 404)
        self.assertRaises(StatusError, ask(late).text)

    def test_chunks_of_other_types_are_refused(self):
        self.assertRaisesRegex(NotAllowed, "of int and not text or bytes", ask, lambda _: iter([1]))
        self.assertRaisesRegex(TypeError, "of dict", ask(lambda _: iter(["a", {}])).text)


class EventTests(unittest.TestCase):
    def test_event_has_its_fields_in_lines(self):
        for event, lines in [
            (Event("one\ntwo\r\nthree\rfour\u2028five"), ["data: one", "data: two", "data: three", "data: four\u2028five"]),
            (Event(""), ["data: "]),
            (Event({"n": 1, "ok": True}, "count", "7", 250), ["event: count", "id: 7", "retry: 250", 'data: {"n":1,"ok":true}']),
            (Event(comment="still\nhere"), [": still", ": here"]),
            (Event(id=""), ["id: "]),
        ]:
            self.assertEqual(event.encode().decode(), "\n".join([*lines, "", ""]))

    def test_fields_of_several_lines_are_refused(self):
        for fields in [{"event": "a\nb"}, {"id": "a\r"}, {"id": "a\0"}, {"event": 1}, {"retry": -1}, {"retry": "1"}]:
            self.assertRaises(ValueError, Event, "x", **fields)
        with self.assertRaises(ValueError):
            Event(float("nan")).encode()

    def test_stream_of_events_has_its_headers(self):
        response = ask(lambda _: EventStream([1, "two", Event([3], "last")], {"x-a": "b"}))
        self.assertEqual(response.headers, [("x-a", "b"), ("content-type", "text/event-stream"), ("cache-control", "no-cache")])
        self.assertEqual(response.text(), 'data: 1\n\ndata: two\n\nevent: last\ndata: [3]\n\n')

    def test_asynchronous_events_are_sent_and_closed(self):
        async def events():
            try:
                while True:
                    yield Event("x")
            finally:
                ended.append(True)

        ended = []
        response = ask(lambda _: EventStream(events()))
        self.assertEqual(next(iter(response.body)), b"data: x\n\n")
        response.body.close()
        self.assertEqual(ended, [True])


if __name__ == "__main__":
    unittest.main()
