"""Headers of requests and responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Headers(Mapping[str, str]):
    """Case-insensitive headers. Of repeated headers, holds the first."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = list(pairs)

    def __getitem__(self, name: str) -> str:
        for key, value in self.pairs:
            if key.lower() == name.lower():
                return value
        raise KeyError(name)

    def __iter__(self):
        return iter({key.lower(): None for key, _ in self.pairs})

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self.pairs})
