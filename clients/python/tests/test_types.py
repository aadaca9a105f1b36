"""The package passes mypy's strict checks, and gives its callers the types of `typed.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY


def test_types_are_complete_and_correct(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    checked = subprocess.run(
        command, cwd=REPOSITORY / "clients/python", capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
