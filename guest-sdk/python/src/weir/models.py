"""Models and inference."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from weir._handles import Handle
from weir._wit import models
from weir.elements import ElementType
from weir.errors import from_node, from_run
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
    """Name, version and signature of a model."""

    name: str
    version: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class Model(Handle):
    """A model that the function's manifest grants. Tensor functions, workflows and kernel graphs
    are opened and run in the same way.

    The node keeps the model in device memory for the lifetime of this handle. Opening and dropping
    a resident model is cheap.
    """

    __slots__ = ()

    @classmethod
    def open(cls, name: str) -> Model:
        """Opens the newest version of the model ``name``, or a specific version with
        ``name:version``.

        Raises :class:`~weir.NotFound`, :class:`~weir.NotGranted`, or
        :class:`~weir.ResourceExhausted` if no device has room for the model.
        """
        with from_node():
            return cls(models.Model.open(name))

    def describe(self) -> Description:
        """Name, version, inputs and outputs of the model."""
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
        """Runs the model and waits for its outputs.

        ``outputs`` selects the outputs to return, in order; the node need not compute the others.
        ``timeout`` is in seconds, counted in whole milliseconds; the invocation's deadline still
        applies. ``priority`` 1 is the most urgent, 0 uses the invocation's priority.
        """
        with from_run():
            return from_pairs(self._raw.infer(to_pairs(inputs), _options(outputs, timeout, priority)))

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,
        priority: int | None = None,
    ) -> Pending:
        """Starts a run and returns without waiting for its outputs. The inputs may be dropped at
        once.
        """
        with from_run():
            return Pending(self._raw.submit(to_pairs(inputs), _options(outputs, timeout, priority)))


class Pending(Handle):
    """An active run, similar to :class:`concurrent.futures.Future`. Dropping it cancels the run.

    Runs proceed concurrently while the function computes or waits, so several submitted runs take
    as long as the longest. A coroutine can await a run, alone or with others in
    :func:`weir.gather`.
    """

    __slots__ = ()

    def result(self) -> Tensors:
        """Waits for the outputs. A second call fails."""
        with from_run():
            return from_pairs(self._raw.wait())

    def cancel(self) -> None:
        """Cancels the run, unless it is finished; :meth:`result` then fails with
        :class:`~weir.Cancelled`.
        """
        self._raw.cancel()

    def __await__(self) -> Generator[None, None, Tensors]:
        yield  # Other coroutines submit their runs before this one waits.
        return self.result()


def _options(
    outputs: Sequence[str] | None, timeout: float | None, priority: int | None
) -> models.Options | None:
    if outputs is None and timeout is None and priority is None:
        return None
    deadline_ms = None if timeout is None else min(max(int(timeout * 1000), 0), 0xFFFFFFFF)
    return models.Options(None if outputs is None else list(outputs), deadline_ms, priority)
