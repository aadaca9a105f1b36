"""Run with `PYTHONPATH=sdk python3 -m unittest`; needs no node."""

import unittest

from weir.http import Request

import app


class Test(unittest.TestCase):
    def test_shouting_is_in_capitals(self):
        self.assertEqual(app.handle(Request("POST", "/shout", body="grüezi".encode())), "GRÜEZI")


if __name__ == "__main__":
    unittest.main()
