"""Coroutine handlers, and concurrent runs.

asyncio's event loop does not run in a component, which has no sockets and no selectors. None is
needed: a submitted run proceeds on the node, and the function only has to wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

__all__ = ["gather"]


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """Awaits all of them and returns their results in order: ``first, second = await
    gather(classify(a), classify(b))``.

    Each awaitable proceeds to its first run before the function waits for any run. If one fails,
    the others are cancelled.
    """
    results: list[Any] = [None] * len(awaitables)
    waiting = {at: awaitable.__await__() for at, awaitable in enumerate(awaitables)}
    try:
        while waiting:
            for at, steps in list(waiting.items()):
                try:
                    _step(steps)
                except StopIteration as end:
                    results[at] = end.value
                    del waiting[at]
            if waiting:
                await _Turn()
    finally:
        for steps in waiting.values():
            steps.close()
    return results


def finish(answer: Any) -> Any:
    """The result of a handler; a coroutine is run to its end."""
    if not isinstance(answer, Coroutine):
        return answer
    steps = answer.__await__()
    try:
        while True:
            _step(steps)
    except StopIteration as end:
        return end.value


class _Turn:
    """Yields to other coroutines."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def _step(steps: Generator[Any, Any, Any]) -> None:
    """Advances to the next wait. Raises an error in a coroutine that waits for an event loop."""
    awaited = steps.send(None)
    if awaited is not None:
        kind = type(awaited).__name__
        steps.throw(RuntimeError(f"{kind} was awaited, and a component has no event loop: await what the SDK gives, and weir.gather"))
        steps.close()
        raise RuntimeError("a coroutine went on to await what needs an event loop")
