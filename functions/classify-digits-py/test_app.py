"""Run with `PYTHONPATH=../../guest-sdk/python/src python3 -m unittest`; needs pypng."""

import json
import unittest
from pathlib import Path

from weir import Tensor, testing
from weir.http import Request

import app

SAMPLES = Path(__file__).parent.parent / "classify-digits" / "samples"


class Test(unittest.TestCase):
    def test_samples_are_prepared_as_in_training(self):
        for name, expected in json.loads((SAMPLES / "expected.json").read_text()).items():
            wanted = sum(expected["input"], [])

            def model(inputs):
                image = inputs["image"].array()
                self.assertLess(max(abs(a - b) for a, b in zip(image, wanted)), 1e-5, name)
                return {"probabilities": Tensor(expected["probabilities"], (1, 10))}

            with testing.model("digits", model):
                answer = app.handle(Request("POST", "/", body=(SAMPLES / name).read_bytes()))
            self.assertEqual(answer.json()["digit"], expected["digit"])

    def test_bad_requests_have_distinct_errors(self):
        def status(method, path, body=b""):
            with testing.model("digits", lambda inputs: {"probabilities": Tensor([0.1] * 10)}):
                return app.handle(Request(method, path, body=body)).status

        for request, wanted in [
            (("GET", "/"), 200),
            (("GET", "/nowhere"), 404),
            (("DELETE", "/"), 405),
            (("POST", "/"), 400),
            (("POST", "/", b"GIF89a"), 415),
            (("POST", "/", b"\x89PNG\r\n\x1a\n and no more"), 400),
            (("POST", "/", b'{"pixels": 3}'), 400),
            (("POST", "/", b'{"pixels": [[0, 1]], "more": 1}'), 400),
            (("POST", "/", b'{"pixels": [[0, 1e999]]}'), 400),
            (("POST", "/", b'{"pixels": [[0, 1], [1]]}'), 400),
            (("POST", "/", b'{"pixels": [[3, 3]]}'), 422),
            (("POST", "/classify", b'{"pixels": [[0, 1]]}'), 200),
        ]:
            self.assertEqual(status(*request), wanted, request)

    def test_missing_model_is_a_server_error(self):
        self.assertEqual(app.handle(Request("POST", "/", body=b'{"pixels": [[0, 1]]}')).status, 500)


if __name__ == "__main__":
    unittest.main()
