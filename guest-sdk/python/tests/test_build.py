"""What ``weir.build`` makes of what the compiler says, and a compilation that has something to warn of."""

import contextlib
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from weir import _watch, build

IMPORTING = [("<frozen importlib._bootstrap>", 491), ("/3/weir_entry.py", 4)]
WIT = Path(__file__).parents[3] / "wit"
PROGRAMS = Path(sys.executable).parent

APP = """
import logging
import random
import time
import uuid

from weir.http import http_function

BEGAN = time.time()
SEEDED = random.Random(42).random()
UNSEEDED = random.Random()
logging.getLogger().setLevel(logging.INFO)
logging.info("imported")
DAY = time.gmtime(0)
DRAWN = UNSEEDED.random() + random.random()
random.seed(7)
AGAIN = random.random()


def name():
    return uuid.uuid4()


NAMES = [name(), name()]


@http_function
def handle(request):
    return [time.time(), random.random()]
"""


class Build(unittest.TestCase):
    def test_who_asked_is_the_first_that_is_not_pythons_own(self):
        app = ("/0/app.py", 7)
        for places, asked in [
            ([app, *IMPORTING], app),
            ([("/python/uuid.py", 776), app, *IMPORTING], app),
            ([("/3/dateutil/parser.py", 9), app, *IMPORTING], app),
            # A library that is being imported, and one that logs.
            ([("/python/random.py", 870), *IMPORTING[:1], app, *IMPORTING], None),
            ([("/python/logging/__init__.py", 300), app, *IMPORTING], None),
            ([("<string>", 1)], None),
        ]:
            self.assertEqual(_watch.caller(places, "/0/"), asked, places)

    def test_the_exception_of_a_module_is_all_that_is_said(self):
        output = (
            'Traceback (most recent call last):\n  File "/bin/componentize-py", line 8, in <module>\n    sys.exit(script())\n'
            'AssertionError: Traceback (most recent call last):\n  File "/2/weir_entry.py", line 4, in <module>\n    import app\n'
            '  File "/0/app.py", line 3, in <module>\n    f()\nNameError: f\n\n\nCaused by:\n    NameError: f\n'
        )
        said = 'Traceback (most recent call last):\n  File "/0/app.py", line 3, in <module>\n    f()\nNameError: f'
        self.assertEqual(build.said(output), said)
        self.assertEqual(build.said("no such world\n"), "no such world")
        self.assertIsNone(build.frozen(said))

    @unittest.skipUnless((PROGRAMS / "componentize-py").exists(), "componentize-py is not installed")
    def test_what_is_asked_for_at_the_top_of_a_module_is_told(self):
        path = {"PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", "")])}
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), mock.patch.dict(os.environ, path):
            Path("app.py").write_text(APP)
            warnings = build.watched("http-function", "app", "function.wasm", str(WIT))
        self.assertEqual([warning.split(": ")[0] for warning in warnings], ["app.py:9", "app.py:11", "app.py:15", "app.py:21"])


if __name__ == "__main__":
    unittest.main()
