"""Tests of the compiler output that ``weir.build`` reports, and of its warnings."""

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
    def test_caller_is_the_first_line_in_the_folder(self):
        app = ("/0/app.py", 7)
        for places, asked in [
            ([app, *IMPORTING], app),
            ([("/python/uuid.py", 776), app, *IMPORTING], app),
            ([("/3/dateutil/parser.py", 9), app, *IMPORTING], app),
            # A library that is being imported, and a library that logs.
            ([("/python/random.py", 870), *IMPORTING[:1], app, *IMPORTING], None),
            ([("/python/logging/__init__.py", 300), app, *IMPORTING], None),
            ([("<string>", 1)], None),
        ]:
            self.assertEqual(_watch.caller(places, "/0/"), asked, places)

    def test_only_the_exception_of_the_module_is_reported(self):
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
    def test_import_time_calls_are_reported(self):
        path = {"PATH": os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", "")])}
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), mock.patch.dict(os.environ, path):
            Path("app.py").write_text(APP)
            warnings = build.watched("http-function", "app", "function.wasm", str(WIT))
        self.assertEqual([warning.split(": ")[0] for warning in warnings], ["app.py:9", "app.py:11", "app.py:15", "app.py:21"])


if __name__ == "__main__":
    unittest.main()
