"""``python -m weir.build WORLD APP COMPONENT`` builds a component from the module APP with
componentize-py, which must be on the path.

With ``--modules FILE --object NAME``, it builds a component for `weir up --watch` and `weir deploy
--watch` instead: the component imports the project's modules from the object NAME when they have
changed, and FILE is what the object has to hold. The component itself is built again only if the
project imports other packages than before, or the SDK or the compiler changed.

Warns about random values and times that were fixed when the module was imported: every call starts
with them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weir import _imports, _live, _watch

_NAME = "weir_entry"
#: Imports the function like the component's own module, and fails if there are warnings.
_ENTRY = """
import importlib.util
from weir import _watch
found = importlib.util.find_spec("{app}")
if found is None:
    raise ImportError("there is no {app}.py here")
_watch.begin(found.origin)
try:
    import {app}
except SystemExit as exit:
    raise RuntimeError(f"the module {app} ends the program when it is imported: sys.exit({{exit.code}})") from None
globals().update((name, value) for name, value in vars({app}).items() if not name.startswith("__"))
_watch.end()
if "{export}" not in globals():
    raise AttributeError("{app} has no function of the kind that it is built as: put @{decorator} before one")
"""

#: Hands calls to modules that are not in the component.
_LIVE_ENTRY = """
import weir.http, weir.stage
from weir import _live
_live.prepare({elsewhere!r})
_exported = _live.Exported({app!r}, {stored!r}, {export!r}, {decorator!r})
class {export}:
    def __getattr__(self, name):
        return getattr(_exported, name)
"""

#: The export of each world: the name that componentize-py looks up, and the decorator of the SDK.
_EXPORTS = {
    "http-function": ("IncomingHandler", "weir.http.http_function"),
    "tensor-function": ("Stage", "weir.tensor_function"),
}


class BuildError(Exception):
    """The compiler's error output, without its internals."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds a component as given on the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m weir.build", description=__doc__)
    parser.add_argument("world", choices=sorted(_EXPORTS), help="of the contract")
    parser.add_argument("app", help="the module with the function, such as app for app.py")
    parser.add_argument("component", help="the file to make")
    parser.add_argument("-d", "--wit", default="wit", help="the folder of the contract [default: wit]")
    parser.add_argument("--modules", help="build for a watch: write the project's modules to this file")
    parser.add_argument("--object", help="the object that will hold the modules")
    args = parser.parse_args(arguments)
    if (args.modules is None) != (args.object is None):
        parser.error("--modules and --object go together")
    try:
        if args.modules is not None:
            build_live(args.world, args.app, args.component, args.wit, modules=args.modules, stored=args.object)
            return 0
        for warning in build(args.world, args.app, args.component, args.wit):
            print(f"warning: {warning}", file=sys.stderr)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def build(world: str, app: str, component: str, wit: str = "wit") -> list[str]:
    """Builds ``component`` from the module ``app`` in the working folder. Returns warnings."""
    warnings = watched(world, app, component, wit)
    if warnings:
        _componentize(world, app, component, wit, [])
    return warnings


def build_live(world: str, app: str, component: str, wit: str, *, modules: str, stored: str) -> bool:
    """Writes the project's modules to ``modules``, and builds the component that imports them from
    the object ``stored``, unless it is current. Returns whether it was built.
    """
    try:
        sources, elsewhere = _imports.project(app, Path())
    except (_imports.Unreadable, UnicodeDecodeError) as error:
        raise BuildError(str(error)) from None
    if app not in sources:
        raise BuildError(f"there is no {app}.py here")
    Path(modules).write_bytes(_live.pack(sources))
    export, decorator = _EXPORTS[world]
    entry = _LIVE_ENTRY.format(elsewhere=sorted(elsewhere), app=app, stored=stored, export=export, decorator=decorator)
    key, made = _key(world, wit, entry), Path(f"{component}.key")
    if Path(component).is_file() and made.is_file() and made.read_text() == key:
        return False
    made.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-build-") as folder:
        Path(folder, f"{_NAME}.py").write_text(entry)
        _componentize(world, _NAME, component, wit, [folder], here=False)
    made.write_text(key)
    return True


def _key(world: str, wit: str, entry: str) -> str:
    """Changes with everything that a component without the project's modules is made of."""
    key = hashlib.sha256(f"{world}\n{entry}\n{shutil.which('componentize-py')}\n".encode())
    installed = {f"{package.name}=={package.version}" for package in importlib.metadata.distributions()}
    key.update("\n".join(sorted(installed)).encode())
    for folder, pattern in ((Path(__file__).parent, "*.py"), (Path(wit), "**/*.wit")):
        for file in sorted(folder.glob(pattern)):
            key.update(f"\n{file.name}\n".encode())
            key.update(file.read_bytes())
    return key.hexdigest()


def watched(world: str, app: str, component: str, wit: str) -> list[str]:
    """Builds ``component``, unless there are warnings, which are returned."""
    with tempfile.TemporaryDirectory(prefix="weir-build-") as folder:
        export, decorator = _EXPORTS[world]
        Path(folder, f"{_NAME}.py").write_text(_ENTRY.format(app=app, export=export, decorator=decorator))
        try:
            _componentize(world, _NAME, component, wit, [folder])
        except BuildError as error:
            warnings = frozen(str(error))
            if warnings is None:
                raise
            return warnings
    return []


def frozen(message: str) -> list[str] | None:
    """The warnings in the error of a compilation; None for any other error."""
    if _watch.FROZEN not in message:
        return None
    found = message.split(_watch.FROZEN, 1)[1].split(_watch.END, 1)[0]
    return [
        f"{file}:{line}: what is random or the time here is asked for when the function is built, and every call gets what it was then, or "
        "the numbers that follow from it; a handler can ask anew"
        for file, line in json.loads(found)
    ]


def _componentize(world: str, app: str, component: str, wit: str, folders: Sequence[str], *, here: bool = True) -> None:
    command = ["componentize-py", "-d", wit, "-w", world, "componentize"]
    for folder in [*(["."] if here else []), str(Path(__file__).parent.parent), *folders]:
        command += ["-p", folder]
    command += [app, "-o", component]
    try:
        built = subprocess.run(command, env={**os.environ, "RUST_BACKTRACE": "0"}, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("componentize-py is not on the path: `weir build` brings it, or `pip install componentize-py`") from None
    if built.returncode != 0:
        raise BuildError(said(built.stderr or built.stdout))


def said(output: str) -> str:
    """The compiler's error output, starting with the function's exception if there is one."""
    _, found, exception = output.partition("AssertionError: ")
    if not found:
        return output.strip()
    exception = exception.rpartition("\n\nCaused by:")[0] or exception
    return re.sub(rf' *File "[^"]*/{_NAME}\.py".*\n.*\n', "", exception).strip()


if __name__ == "__main__":
    sys.exit(main())
