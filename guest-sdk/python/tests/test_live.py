"""Tests of the modules of a watched project: which ones are found, and how they replace each other."""

import contextlib
import io
import sys
import tempfile
import traceback
import unittest
from pathlib import Path

from weir import Tensor, _imports, _live, objects
from weir._wit import Err

FILES = {
    "app.py": "import json, os.path\nfrom helpers import shout\nfrom helpers.words import WORD\nfrom parts import late\n"
    "try:\n    import missing\nexcept ImportError:\n    missing = None\ndef f():\n    import sqlite3\n",
    "helpers/__init__.py": "from . import words\nfrom .words import *\nfrom ..beyond import x\ndef shout(text): return text.upper()\n",
    "helpers/words.py": "WORD = 'hello'\n",
    "parts/late.py": "from helpers.words import WORD as LATE\n",
    "unused.py": "import decimal\n",
}


def packed(**modules):
    return _live.pack({name: _live.Source(f"{name}.py", False, text) for name, text in modules.items()})


class Imports(unittest.TestCase):
    def test_modules_that_the_function_imports_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in FILES.items():
                file = Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
            sources, elsewhere = _imports.project("app", Path(folder))
        self.assertEqual(sorted(sources), ["app", "helpers", "helpers.words", "parts", "parts.late"])
        self.assertTrue({"json", "os.path", "missing"} <= elsewhere, elsewhere)
        self.assertFalse({"sqlite3", "decimal", "helpers.shout"} & elsewhere, elsewhere)
        self.assertEqual(sources["helpers"][:2], ("helpers/__init__.py", True))

    def test_syntax_errors_have_file_and_line(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "app.py").write_text("x = 1\ndef f(:\n")
            with self.assertRaisesRegex(_imports.Unreadable, r"^app\.py:2: "):
                _imports.project("app", Path(folder))


class Modules(unittest.TestCase):
    def setUp(self):
        self.modules = _live.Modules("live_app")
        self.addCleanup(lambda: sys.meta_path.remove(self.modules))
        self.addCleanup(self.modules._forget)

    def test_changed_modules_replace_the_imported_ones(self):
        first = packed(live_app="import live_part\nVALUE = live_part.VALUE", live_part="VALUE = [1]")
        loaded = self.modules.load(first)
        self.assertEqual(loaded.VALUE, [1])
        # As long as nothing changes, a reused instance keeps its globals.
        self.assertIs(self.modules.load(first), loaded)
        second = packed(live_app="import live_part\nVALUE = live_part.VALUE", live_part="VALUE = [2]")
        self.assertEqual(self.modules.load(second).VALUE, [2])

    def test_failed_imports_show_their_lines_and_are_tried_again(self):
        broken = packed(live_app="import live_part", live_part="fine = 1\nopen('labels.txt')  # in the middle")
        for _ in range(2):
            try:
                self.modules.load(broken)
                self.fail("the module was imported")
            except FileNotFoundError as failure:
                shown = "".join(traceback.format_exception(failure))
        self.assertIn('File "live_part.py", line 2', shown)
        self.assertIn("# in the middle", shown)
        self.assertIn("delete `watch_build`", shown)
        self.assertEqual(self.modules.load(packed(live_app="VALUE = 3")).VALUE, 3)

    def test_module_that_ends_the_program_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, r"sys\.exit\(4\)"):
            self.modules.load(packed(live_app="import sys\nsys.exit(4)"))


class Exported(unittest.TestCase):
    def test_calls_reach_the_stored_modules(self):
        exported = _live.Exported("live_stage", "f.modules", "Stage", "weir.tensor_function")
        self.addCleanup(lambda: sys.meta_path.remove(exported._modules))
        self.addCleanup(exported._modules._forget)

        def put(text):
            data = packed(live_stage=text)
            objects.put("f.modules", Tensor.from_bytes("UINT8", [len(data)], data))

        def refused():
            with self.assertRaises(Err) as refusal, contextlib.redirect_stderr(io.StringIO()) as log:
                exported.run([])
            return refusal.exception.value.value, log.getvalue()

        self.assertIn("have expired", refused()[0])
        put("from weir import Tensor, tensor_function\n@tensor_function\ndef run(inputs):\n    return {'y': Tensor([7.0])}\n")
        self.assertEqual([name for name, _ in exported.run([])], ["y"])
        put("raise ValueError('in the module')")
        text, log = refused()
        self.assertEqual(text, "in the module")
        self.assertRegex(log, r'^Traceback .*\n  File "live_stage.py", line 1')
        put("x = 1")
        self.assertIn("put @weir.tensor_function before one", refused()[0])
        objects.delete("f.modules")


if __name__ == "__main__":
    unittest.main()
