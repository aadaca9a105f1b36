"""Tensors that are kept under names, for other functions, inferences and clients to read.

The function's manifest says which names it may read, and which it may put and delete::

    [function.objects]
    read = ["thresholds"]
    write = ["session-*"]

::

    from weir import Tensor, objects

    thresholds = objects.get("thresholds").tolist()
    objects.put("session-7", Tensor([0.5, 0.25]), ttl=600)
"""

from __future__ import annotations

from weir._wit import objects
from weir.errors import from_node
from weir.tensors import Tensor

__all__ = ["delete", "get", "put"]


def get(name: str) -> Tensor:
    """The tensor that is kept under ``name``, as it was put.

    Fails with :class:`~weir.NotFound` where there is none, or it has expired, and with :class:`~weir.NotGranted`.
    """
    with from_node():
        return Tensor._of(objects.get(name))


def put(name: str, tensor: Tensor, *, ttl: float | None = None) -> None:
    """Keep a copy of ``tensor`` under ``name``, in the place of what was there. It is durable when this returns.

    ``ttl`` is for how many seconds, counted in whole milliseconds; without it, for as long as the node's settings say. Fails with
    :class:`~weir.ResourceExhausted` where there is no room for it.
    """
    with from_node():
        objects.put(name, tensor._raw, None if ttl is None else max(int(ttl * 1000), 0))


def delete(name: str) -> None:
    """Let nobody find ``name`` any more."""
    with from_node():
        objects.delete(name)
