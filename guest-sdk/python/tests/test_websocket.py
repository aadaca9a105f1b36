"""Tests of WebSockets."""

import time
import unittest

from weir import StatusError, websocket
from weir._records import Close, Reader, decode, encode, encode_close
from weir.http import Request, answer


class Client:
    """A connection whose client has sent everything before the function reads."""

    def __init__(self, *sent, piece=1 << 20):
        body = b"".join(encode_close(item) if isinstance(item, Close) else encode(item) for item in sent)
        self._pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
        self.received = []
        self.is_gone = False

    def read(self):
        return self._pieces.pop(0) if self._pieces else b""

    def wait(self, seconds):
        return bool(self._pieces)

    def write(self, record):
        self.received += decode(record)
        return not self.is_gone


def serve(handler, client, protocol=None):
    request = Request("GET", "/", {"content-type": websocket.MEDIA_TYPE, "sec-websocket-protocol": "a, b"})
    response = answer(lambda request: websocket.accept(request, handler, protocol), request)
    response.body.serve(client)
    return response


class WebSocketTests(unittest.TestCase):
    def test_messages_are_read_from_pieces_of_any_size(self):
        async def echo(socket):
            async for message in socket:
                await socket.send(message)
            ended.append(socket.closed)

        for piece in (1, 7, 1 << 20):
            ended = []
            client = Client("grüezi", b"\0\1", "", Close(4001, "enough"), piece=piece)
            response = serve(echo, client)
            self.assertEqual(client.received, ["grüezi", b"\0\1", ""])
            self.assertEqual((response.status, ended), (200, [Close(4001, "enough")]))

    def test_handler_that_returns_closes_with_1000(self):
        client = Client("one", "two")
        serve(lambda socket: socket.send(socket.receive()), client)
        self.assertEqual(client.received, ["one", Close(1000)])

    def test_handler_chooses_the_code(self):
        client = Client()
        serve(lambda socket: socket.close(4000, "bye"), client)
        self.assertEqual(client.received, [Close(4000, "bye")])
        with self.assertRaises(ValueError):
            encode_close(Close(4000, "a" * 124))

    def test_exception_closes_with_1011(self):
        client = Client()
        serve(lambda socket: 1 / 0, client)
        self.assertEqual(client.received, [Close(1011)])

    def test_client_that_is_gone_ends_the_handler(self):
        def flood(socket):
            while True:
                socket.send("more")

        client = Client()
        client.is_gone = True
        serve(flood, client)
        self.assertEqual(client.received, ["more"])

    def test_wait_counts_the_time_of_all_pieces(self):
        class SlowClient(Client):
            def wait(self, seconds):
                asked.append(seconds)
                time.sleep(0.02)
                return seconds > 0.01 and super().wait(seconds)

        asked = []
        serve(lambda socket: socket.wait(0.05), SlowClient("a long message", piece=1))
        self.assertLess(len(asked), 6)
        self.assertEqual(asked, sorted(asked, reverse=True))

    def test_wait_does_not_wait_for_a_message_that_is_there(self):
        def handler(socket):
            waited.append(socket.wait(0))
            waited.append(socket.receive())
            waited.append(socket.wait(0))

        waited = []
        serve(handler, Client("one"))
        self.assertEqual(waited, [True, "one", False])

    def test_body_without_a_close_was_lost(self):
        lost = []
        serve(lambda socket: lost.append((socket.receive(), socket.closed)), Client())
        self.assertEqual(lost, [(None, Close(1006))])

    def test_ordinary_requests_are_refused(self):
        response = answer(lambda request: websocket.accept(request, print), Request())
        self.assertEqual(response.status, 426)

    def test_subprotocols_are_offered_and_chosen(self):
        response = serve(lambda socket: None, Client(), "b")
        self.assertIn(("sec-websocket-protocol", "b"), response.headers)
        request = Request(headers={"sec-websocket-protocol": "a, b"})
        self.assertEqual(websocket.protocols(request), ["a", "b"])

    def test_unknown_records_are_errors(self):
        reader = Reader()
        reader.push(b"\x03\0\0\0\0")
        with self.assertRaises(ValueError):
            reader.next()
        with self.assertRaises(TypeError):
            encode(7)

    def test_message_after_a_close_is_refused(self):
        def handler(socket):
            socket.close()
            with self.assertRaises(StatusError):
                socket.send("late")

        client = Client()
        serve(handler, client)
        self.assertEqual(client.received, [Close(1000)])


if __name__ == "__main__":
    unittest.main()
