"""Tests of requests and responses as the node handles them."""

import sys
import unittest

from weir import ElementType, InvalidArgument, StatusError, Tensor, Unavailable
from weir.http import NotAllowed, Request, Response, answer


class HttpTests(unittest.TestCase):
    def test_request_exposes_its_parts(self):
        request = Request("POST", "/a/b?x=1&y=a%20b&x=2", {"Content-Type": "text/plain"}, "grüezi".encode())
        self.assertEqual((request.path, request.query), ("/a/b", {"x": "2", "y": "a b"}))
        self.assertEqual(request.headers["content-type"], "text/plain")
        self.assertEqual(request.headers.get("accept"), None)
        self.assertEqual(request.text(), "grüezi")
        self.assertEqual(Request(body=b"abcd").tensor(ElementType.UINT16).shape, (2,))
        self.assertEqual(Request(body=b"abcd").tensor(ElementType.UINT8, (2, -1)).shape, (2, 2))

    def test_common_encodings_are_loaded(self):
        from weir import _encodings  # noqa: F401

        self.assertLessEqual({f"encodings.{name}" for name in ("idna", "punycode", "cp1252", "utf_16_le")}, set(sys.modules))

    def test_invalid_bodies_become_400_responses(self):
        for read in [Request(body=b"\xff").text, Request(body=b"{").json]:
            with self.assertRaises(StatusError) as error:
                read()
            self.assertEqual(error.exception.status, 400)

    def test_content_type_follows_from_body(self):
        for body, content_type, sent in [
            ("hi", "text/plain; charset=utf-8", b"hi"),
            (b"hi", "application/octet-stream", b"hi"),
            ({"a": [1]}, "application/json", b'{"a":[1]}'),
        ]:
            response = Response.of(body)
            self.assertEqual((response.headers, response.body), ([("content-type", content_type)], sent))
        self.assertEqual((Response().headers, Response().body), ([], b""))
        self.assertEqual(Response("<p>", headers={"Content-Type": "text/html"}).headers, [("Content-Type", "text/html")])
        self.assertIsInstance(Response(Tensor([1])).body, Tensor)

    def test_invalid_responses_are_rejected_on_creation(self):
        for make, kind, words in [
            (lambda: Response("", 7), ValueError, "status or header is not allowed: 7"),
            (lambda: Response("", "200"), TypeError, "the status is of str"),
            (lambda: Response("", 200, {"x-count": 3}), TypeError, "the header 'x-count' is 3"),
            (lambda: Response({"a": float("nan")}), ValueError, "not JSON compliant"),
            (lambda: Response(closed()), ValueError, "the tensor was closed"),
        ]:
            with self.assertRaisesRegex(kind, words):
                make()

    def test_invalid_results_are_not_handler_exceptions(self):
        for given, words in [(answer, "not JSON serializable"), ({1, 2}, "not JSON serializable"), (closed(), "the tensor was closed")]:
            with self.assertRaisesRegex(NotAllowed, f"gave what can be no answer: .*{words}"):
                answer(lambda request: given, Request())

        def fails(request):
            return undefined  # noqa: F821

        with self.assertRaises(NameError):
            answer(fails, Request())

    def test_coroutine_handler_runs_to_its_end(self):
        async def handler(request):
            if request.path == "/nowhere":
                raise StatusError(404, "nothing")
            return {"path": request.path}

        self.assertEqual(answer(handler, Request()).json(), {"path": "/"})
        self.assertEqual(answer(handler, Request("GET", "/nowhere")).status, 404)

    def test_errors_become_responses_and_other_exceptions_do_not(self):
        def fail(error):
            def handler(request):
                raise error

            return answer(handler, Request())

        self.assertEqual((fail(StatusError(418, "a teapot")).status, fail(StatusError(418, "x")).text()), (418, "x\n"))
        self.assertEqual(fail(InvalidArgument("no")).status, 400)
        self.assertIn(("retry-after", "1"), fail(Unavailable("soon")).headers)
        with self.assertRaises(KeyError):
            fail(KeyError("a mistake"))


def closed():
    with Tensor([1]) as tensor:
        return tensor


if __name__ == "__main__":
    unittest.main()
