"""Nodes for tests.

The fixtures of pytest `weir_node` and `weir` start one node for all tests of a session.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any

from ._sync import Client

# Settings of the node that its environment passes on. Others, such as the address of a node in
# production, are for other programs.
_PASSED_ON = ("WEIR_ONNXRUNTIME",)


class NodeError(RuntimeError):
    """The node did not start, or did not end as it should. The text has the end of its log."""


class Node:
    """A node in a process of its own, on a free port, with a temporary folder.

    Use it as a context manager, or end it with `stop`.
    """

    def __init__(
        self,
        *,
        program: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 60.0,
    ) -> None:
        """Starts a node, and waits until it is ready.

        - `program`: the `weir` command; by default `WEIR_PROGRAM`, the command of this Python
          installation, or the first one on the `PATH`.
        - `arguments`: options of `weir up`, such as `["--set", "gateway.infer_wall_ms_max=1000"]`.
        - `environment`: further variables of the process.
        """
        command = [str(find_program(program)), "up", "--listen", "127.0.0.1:0"]
        self._stop_timeout_s = stop_timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="weir-")
        self.folder = Path(self._folder.name)
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("WEIR_") or name in _PASSED_ON
        }
        try:
            with self._log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    [*command, "--data", str(self.folder / "data"), *arguments],
                    cwd=self.folder,
                    env={**variables, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        except OSError as error:
            self._folder.cleanup()
            raise NodeError(f"cannot start {command[0]}: {error}") from error
        self._addresses: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        try:
            self.url = self._wait_for_address(start_timeout_s)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Id of the node's process."""
        return self._process.pid

    def log(self) -> str:
        """The node's log so far."""
        return self._log_path.read_text(errors="replace")

    def client(self, **options: Any) -> Client:
        """A client of the node, with the options of `Client`."""
        return Client(self.url, **{"token": "", **options})

    def stop(self) -> None:
        """Ends the node gracefully, and removes its folder. Does nothing the second time."""
        if not self.folder.exists():
            return
        self._process.terminate()
        try:
            status = self._process.wait(self._stop_timeout_s)
            text = f"the node ended with status {status}:\n{self._log_end()}" if status else None
        except subprocess.TimeoutExpired:
            text = f"the node did not end within {self._stop_timeout_s} s:\n{self._log_end()}"
        self.kill()
        if text is not None:
            raise NodeError(text)

    def kill(self) -> None:
        """Kills the node, as a crash would, and removes its folder."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        self._folder.cleanup()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _log_path(self) -> Path:
        return self.folder / "log"

    def _log_end(self) -> str:
        return "\n".join(self.log().splitlines()[-50:])

    def _read_output(self) -> None:
        """Reports the addresses in the output. Reads to its end, so that the pipe never fills."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                for word in line.replace(",", " ").split():
                    if word.startswith(("http://", "https://")):
                        self._addresses.put(word)
        self._addresses.put(None)

    def _wait_for_address(self, timeout_s: float) -> str:
        try:
            address = self._addresses.get(timeout=timeout_s)
        except Empty:
            raise NodeError(f"the node did not start within {timeout_s} s:\n{self._log_end()}") from None
        if address is None:
            raise NodeError(f"the node did not start:\n{self._log_end()}")
        return address


def find_program(program: str | os.PathLike[str] | None = None) -> Path:
    """Path of the `weir` command."""
    named = program or os.environ.get("WEIR_PROGRAM")
    if named:
        path = shutil.which(named)
        if path is None:
            raise NodeError(f"{named} is not a program")
        return Path(path)
    installed = Path(sysconfig.get_path("scripts")) / "weir"
    if installed.is_file():
        return installed
    path = shutil.which("weir")
    if path is None:
        raise NodeError("there is no weir command; What to do: install weir, or name it in WEIR_PROGRAM")
    return Path(path)
