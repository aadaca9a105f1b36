"""Handlers that are coroutines, and runs that are awaited together.

A component has no sockets and no selectors, so asyncio's event loop does not run in one. It takes none: a run goes on by itself once it is
submitted, and all that is left to do is to wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

__all__ = ["gather"]


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await all of them, and give what they give, in order: ``first, second = await gather(classify(a), classify(b))``.

    Each goes on to its first run before any is waited for. Where one fails the others are cancelled.
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
    """What a handler gave; if that is a coroutine, what it comes to."""
    if not isinstance(answer, Coroutine):
        return answer
    steps = answer.__await__()
    try:
        while True:
            _step(steps)
    except StopIteration as end:
        return end.value


class _Turn:
    """Lets other coroutines go on first."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def _step(steps: Generator[Any, Any, Any]) -> None:
    """Go on to the next wait. What waits for an event loop is told, where it does, that there is none."""
    awaited = steps.send(None)
    if awaited is not None:
        kind = type(awaited).__name__
        steps.throw(RuntimeError(f"{kind} was awaited, and a component has no event loop: await what the SDK gives, and weir.gather"))
        steps.close()
        raise RuntimeError("a coroutine went on to await what needs an event loop")
