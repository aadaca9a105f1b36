"""Models, and runs of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from weir._handles import Handle
from weir._wit import models
from weir.elements import ElementType
from weir.errors import from_node
from weir.tensors import Tensor, Tensors, from_pairs, to_pairs


@dataclass(frozen=True)
class Port:
    """One input or output of a model."""

    name: str
    element_type: ElementType
    #: The size of each dimension, outermost first; ``None`` where it may differ from run to run.
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Description:
    """What a model is, and what it takes and gives."""

    name: str
    version: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class Model(Handle):
    """A model that the function's manifest grants it; or a tensor function, a workflow, or a kernel graph, which run like one.

    The node keeps it in device memory while this handle lives. Opening and dropping one that is there already costs little.
    """

    __slots__ = ()

    @classmethod
    def open(cls, name: str) -> Model:
        """Open the newest version of the model ``name``, or one version of it with ``name:version``.

        Fails with :class:`~weir.NotFound`, :class:`~weir.NotGranted`, or :class:`~weir.ResourceExhausted` where no device has room for it.
        """
        with from_node():
            return cls(models.Model.open(name))

    def describe(self) -> Description:
        """Its name, version, inputs and outputs."""
        raw = self._raw.describe()
        inputs, outputs = (
            tuple(Port(port.name, port.element_type, tuple(port.shape)) for port in ports)
            for ports in (raw.inputs, raw.outputs)
        )
        return Description(raw.name, raw.version, inputs, outputs)

    def infer(
        self,
        inputs: Mapping[str, Tensor],
        *,
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,
        priority: int | None = None,
    ) -> Tensors:
        """Run it, and wait for its outputs.

        ``outputs`` names those to return, in order; the others need not be computed. ``timeout`` is in seconds, counted in whole
        milliseconds; the invocation's own deadline holds in any case. ``priority`` 1 is the most urgent, 0 the invocation's own.
        """
        with from_node():
            return from_pairs(self._raw.infer(to_pairs(inputs), _options(outputs, timeout, priority)))

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,
        priority: int | None = None,
    ) -> Pending:
        """Start a run, and do something else until it is done. The inputs may be dropped at once."""
        with from_node():
            return Pending(self._raw.submit(to_pairs(inputs), _options(outputs, timeout, priority)))


class Pending(Handle):
    """A run under way, in the manner of :class:`concurrent.futures.Future`. Dropping it cancels the run.

    Runs go on while the function computes or waits for another, so several that were submitted before the first is waited for take no
    longer than the longest. In a coroutine it can be awaited, alone or with others in :func:`weir.gather`.
    """

    __slots__ = ()

    def result(self) -> Tensors:
        """Wait for the outputs. They are handed over once."""
        with from_node():
            return from_pairs(self._raw.wait())

    def cancel(self) -> None:
        """Stop the run, unless it is done; :meth:`result` then fails with :class:`~weir.Cancelled`."""
        self._raw.cancel()

    def __await__(self) -> Generator[None, None, Tensors]:
        yield  # Others begin their runs before this one is waited for.
        return self.result()


def _options(
    outputs: Sequence[str] | None, timeout: float | None, priority: int | None
) -> models.Options | None:
    if outputs is None and timeout is None and priority is None:
        return None
    deadline_ms = None if timeout is None else min(max(int(timeout * 1000), 0), 0xFFFFFFFF)
    return models.Options(None if outputs is None else list(outputs), deadline_ms, priority)
