"""Fixtures of pytest for nodes of Weir, which the package registers.

The fixtures import the client, so that sessions without them do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from weir_client import Client
    from weir_client.testing import Node


@pytest.fixture(scope="session")
def weir_node() -> Iterator[Node]:
    """A node, which all tests of the session share."""
    from weir_client.testing import Node

    with Node() as node:
        yield node


@pytest.fixture
def weir(weir_node: Node) -> Iterator[Client]:
    """A client of the session's node."""
    with weir_node.client() as client:
        yield client
