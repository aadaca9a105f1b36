"""Tests of requests to other servers."""

import unittest

from weir import InvalidArgument, RequestFailed, StatusError, gather, testing
from weir.http import Request, Response, answer, fetch, get, post


class ClientTests(unittest.TestCase):
    def test_request_has_method_headers_and_body(self):
        with testing.outbound(lambda request: {"path": request.path, "text": request.text()}) as requests:
            response = get("http://example.com:8080/a?x=1#part", params={"y": "b c"}, headers={"X-A": "1"})
            self.assertEqual(response.json(), {"path": "http://example.com:8080/a", "text": ""})
            self.assertEqual((response.status, response.ok, response.url), (200, True, "http://example.com:8080/a?x=1&y=b+c"))
            post("https://example.com", "hi")
            post("https://example.com", b"\x00", headers=[("content-type", "a/b")])
            post("https://example.com", json={"a": [1]})
            fetch("https://example.com", "delete").result()
        sent = [(r.method, r.query_string, r.body(), dict(r.headers)) for r in requests]
        agent = {"user-agent": "weir"}
        self.assertEqual(sent[0], ("GET", "x=1&y=b+c", b"", {"x-a": "1", **agent}))
        self.assertEqual(sent[1], ("POST", "", b"hi", {"content-type": "text/plain; charset=utf-8", "content-length": "2", **agent}))
        self.assertEqual(sent[2], ("POST", "", b"\x00", {"content-type": "a/b", "content-length": "1", **agent}))
        self.assertEqual(sent[3], ("POST", "", b'{"a":[1]}', {"content-type": "application/json", "content-length": "9", **agent}))
        self.assertEqual(sent[4][0], "DELETE")
        with testing.outbound(lambda _: "") as requests:
            get("http://example.com/gr\u00fc\u00df/a%20b?q=\u00fc c")
        self.assertEqual((requests[0].path, requests[0].query_string), ("http://example.com/gr%C3%BC%C3%9F/a%20b", "q=%C3%BC%20c"))

    def test_redirects_are_quoted_and_have_no_password(self):
        locations = {"https://one.example/a": "/gr\u00fc\u00df b", "https://one.example/c": "https://user:word@other.example/"}

        def server(request):
            location = locations.get(request.path)
            return Response("", 302, {"location": location}) if location else ""

        with testing.outbound(server) as requests:
            get("https://one.example/a")
            with self.assertRaisesRegex(RequestFailed, "but a URL with a password") as caught:
                get("https://one.example/c")
        self.assertNotIn("word@", str(caught.exception))
        self.assertEqual(requests[1].path, "https://one.example/gr%C3%BC%C3%9F%20b")

    def test_redirects_follow_the_standard(self):
        headers = {"authorization": "secret"}

        def ask(status, to, method="POST", **options):
            def serve(request):
                return "end" if request.path.endswith("/end") else Response("", status, {"location": to})

            with testing.outbound(serve) as requests:
                response = fetch("https://one.example/start", method, body="hi", headers=headers, **options).result()
            last = requests[-1]
            return response.status, last.method, last.path, last.body(), "authorization" in last.headers

        self.assertEqual(ask(302, "/end"), (200, "GET", "https://one.example/end", b"", True))
        self.assertEqual(ask(307, "/end"), (200, "POST", "https://one.example/end", b"hi", True))
        self.assertEqual(ask(303, "https://two.example/end", "PUT"), (200, "GET", "https://two.example/end", b"", False))
        self.assertEqual(ask(302, "/end", redirects=False), (302, "POST", "https://one.example/start", b"hi", True))
        with self.assertRaisesRegex(RequestFailed, "redirects more than 20 times"):
            ask(302, "/start")
        with self.assertRaisesRegex(RequestFailed, "it redirects to another URL, but 'ftp://x' is no URL"):
            ask(302, "ftp://x")

    def test_requests_are_awaited_together(self):
        async def both(request):
            one, other = await gather(fetch("http://a.example/"), fetch("http://b.example/"))
            return one.text() + other.text()

        with testing.outbound(lambda request: request.path):
            self.assertEqual(answer(both, Request()).text(), "http://a.example/http://b.example/")

    def test_error_status_is_a_response_until_it_is_checked(self):
        def missing(request):
            raise StatusError(404, "not here")

        with testing.outbound(missing):
            response = get("http://example.com/x")
            self.assertEqual((response.status, response.ok, response.text()), (404, False, "not here\n"))
            with self.assertRaisesRegex(RequestFailed, "http://example.com/x answered with status 404: not here"):
                response.check()
            with self.assertRaisesRegex(RequestFailed, "no JSON"):
                response.json()
        with testing.outbound(lambda _: "ok"):
            self.assertEqual(get("http://example.com/").check().text(), "ok")

    def test_failed_request_is_a_bad_gateway(self):
        self.assertEqual(answer(lambda _: get("http://example.com/"), Request()).status, 502)

    def test_invalid_requests_are_refused(self):
        for url in ["example.com", "ftp://example.com/", "http:///x"]:
            self.assertRaisesRegex(InvalidArgument, "no URL of the form", get, url)
        self.assertRaisesRegex(InvalidArgument, "password", get, "http://me:secret@example.com/")
        self.assertRaisesRegex(InvalidArgument, "either a body or json", post, "http://a.example/", "x", json=1)
        self.assertRaisesRegex(InvalidArgument, "positive number of seconds", get, "http://a.example/", timeout=0)


if __name__ == "__main__":
    unittest.main()
