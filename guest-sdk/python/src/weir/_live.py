"""Modules of a watched project. They are imported from a named object when a call finds that they
have changed, instead of once when the component is built: an edit needs no new component.

:mod:`weir.build` makes the object's bytes with :func:`pack`, outside of a component.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, ModuleType
from typing import NamedTuple

from weir import objects
from weir.errors import InternalError, NotFound, to_node

_NO_FILES = "a watched function has no files: delete `watch_build` in weir.toml, and every change builds the component with them"
_EXPIRED = "the modules of this watched function have expired: deploy it again with `weir deploy`"


class Source(NamedTuple):
    """Source of a module."""

    #: Path in the project.
    file: str
    is_package: bool
    text: str


def pack(sources: dict[str, Source]) -> bytes:
    """Encodes the modules of a project by their names."""
    return json.dumps(sources).encode()


def prepare(names: Iterable[str]) -> None:
    """Imports packages at build time, so that the component's snapshot contains them.

    ``names`` are the packages that the project's modules import. A package that cannot be imported is
    skipped: the import statement in the project reports the error.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001
            continue


class Modules(importlib.abc.MetaPathFinder):
    """The project's modules, found in the bytes of an object."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._packed: bytes | None = None
        self._sources: dict[str, Source] = {}

    def load(self, packed: bytes) -> ModuleType:
        """Imports the module with the function, unless ``packed`` is imported already."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if packed != self._packed:
            self._forget()
            self._sources = {name: Source(*source) for name, source in json.loads(packed).items()}
        try:
            module = importlib.import_module(self._app)
        except BaseException as error:
            self._forget()
            if isinstance(error, OSError):
                error.add_note(_NO_FILES)
            if isinstance(error, SystemExit):
                raise RuntimeError(f"the module {self._app} ends the program when it is imported: sys.exit({error.code})") from None
            raise
        self._packed = packed
        return module

    def trim(self, error: BaseException) -> None:
        """Removes the frames before the first one in the project from the traceback of ``error``."""
        files = {source.file for source in self._sources.values()}
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename not in files:
            trace = trace.tb_next
        error.__traceback__ = trace

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is None:
            return None
        loader = _Loader(source)
        return importlib.util.spec_from_loader(fullname, loader, origin=source.file, is_package=source.is_package)

    def _forget(self) -> None:
        for name in self._sources:
            sys.modules.pop(name, None)
        self._packed = None


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, source: Source) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        # Tracebacks show the lines of it.
        return self._source.text

    def is_package(self, fullname: str) -> bool:
        return self._source.is_package

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source.text, self._source.file, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._source.file
        exec(self.get_code(module.__name__), module.__dict__)  # noqa: S102


class Exported:
    """The export of a watched component, which hands calls to the export of the project's modules."""

    def __init__(self, app: str, stored: str, export: str, decorator: str) -> None:
        self._modules = Modules(app)
        self._stored = stored
        self._export = export
        self._missing = f"{app} has no function of the kind that it is built as: put @{decorator} before one"

    def handle(self, request: object, out: object) -> None:
        """The export of the world ``http-function``."""
        from weir import _wasi_http

        try:
            handler = self._found()
        except Exception as error:  # noqa: BLE001
            self._modules.trim(error)
            _wasi_http.refuse(error, out)
        else:
            handler().handle(request, out)

    def run(self, inputs: object) -> object:
        """The export of the world ``tensor-function``."""
        try:
            stage = self._found()
        except Exception as error:  # noqa: BLE001
            self._modules.trim(error)
            traceback.print_exception(error)
            raise to_node(InternalError(str(error))) from None
        return stage().run(inputs)

    def _found(self) -> Callable[[], object]:
        try:
            packed = objects.get(self._stored).tobytes()
        except NotFound:
            raise RuntimeError(_EXPIRED) from None
        found = getattr(self._modules.load(packed), self._export, None)
        if found is None:
            raise AttributeError(self._missing)
        return found
