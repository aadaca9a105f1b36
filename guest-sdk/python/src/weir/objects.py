"""Named objects: tensors stored under a name, which other functions, inferences and clients can
read.

The function's manifest lists the names it may read, and the names it may put and delete::

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
    """Reads the tensor stored under ``name``.

    Raises :class:`~weir.NotFound` if the object does not exist or has expired, and
    :class:`~weir.NotGranted`.
    """
    with from_node():
        return Tensor._of(objects.get(name))


def put(name: str, tensor: Tensor, *, ttl: float | None = None) -> None:
    """Stores a copy of ``tensor`` under ``name``, replacing an existing object. The object is
    durable when the call returns.

    ``ttl`` is its lifetime in seconds, counted in whole milliseconds; None selects the node's
    default. Raises :class:`~weir.ResourceExhausted` if there is no space for the object.
    """
    with from_node():
        objects.put(name, tensor._raw, None if ttl is None else max(int(ttl * 1000), 0))


def delete(name: str) -> None:
    """Deletes the object ``name``."""
    with from_node():
        objects.delete(name)
