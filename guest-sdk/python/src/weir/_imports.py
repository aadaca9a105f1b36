"""Finds the modules of a project, and what they import from elsewhere, without importing them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from weir._live import Source


class Unreadable(Exception):
    """A module that this Python cannot parse."""


def project(app: str, folder: Path) -> tuple[dict[str, Source], set[str]]:
    """The modules in ``folder`` that ``app`` imports when it is imported, itself included, and the
    names of all other modules that these import.
    """
    sources: dict[str, Source] = {}
    elsewhere: set[str] = set()
    waiting = [app]
    while waiting:
        name = waiting.pop()
        if name in sources or name in elsewhere:
            continue
        found = _find(name, folder)
        if found is None:
            # Of `from package import name`, the name may be a variable of a module of the project.
            if _find(name.partition(".")[0], folder) is None:
                elsewhere.add(name)
            continue
        sources[name] = found
        waiting.extend(_imported(name, found))
    return sources, elsewhere


def _find(name: str, folder: Path) -> Source | None:
    path = folder.joinpath(*name.split("."))
    for file, is_package in ((path / "__init__.py", True), (path.with_name(path.name + ".py"), False)):
        if file.is_file():
            return Source(file.relative_to(folder).as_posix(), is_package, file.read_text(encoding="utf-8"))
    if path.is_dir() and any(path.glob("*.py")):
        # A package without __init__.py.
        return Source(path.relative_to(folder).as_posix(), True, "")
    return None


def _imported(name: str, source: Source) -> Iterator[str]:
    """Every name that may be a module, with its packages."""
    try:
        tree = ast.parse(source.text, source.file)
    except SyntaxError as error:
        marked = f"    {error.text.strip()}\n" if error.text else ""
        raise Unreadable(
            f"{source.file}:{error.lineno}: {error.msg}\n{marked}(read by Python {sys.version_info.major}.{sys.version_info.minor})"
        ) from None
    package = name if source.is_package else name.rpartition(".")[0]
    for statement in _executed(tree):
        if isinstance(statement, ast.Import):
            targets = [alias.name for alias in statement.names]
        else:
            base = statement.module or ""
            if statement.level:
                above = package.split(".")[: len(package.split(".")) - statement.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            targets = [base, *(f"{base}.{alias.name}" for alias in statement.names if alias.name != "*")]
        for target in targets:
            parts = target.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _executed(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when the module is imported: those outside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _executed(child)
