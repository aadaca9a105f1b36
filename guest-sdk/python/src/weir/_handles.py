"""Handles of resources on the node."""

from __future__ import annotations

from typing import Any, TypeVar

Held = TypeVar("Held", bound="Handle")


class Handle:
    """A resource on the node. Released with its last reference or at the end of a ``with`` block.
    """

    __slots__ = ("_held",)

    def __init__(self, raw: Any) -> None:
        self._held = raw

    @property
    def _raw(self) -> Any:
        if self._held is None:
            raise ValueError(f"the {type(self).__name__.lower()} was closed: use it within its `with` block")
        return self._held

    def __enter__(self: Held) -> Held:
        return self

    def __exit__(self, *failure: object) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(*failure)
