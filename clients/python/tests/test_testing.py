"""Nodes for tests: their start, their end, and their fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import REPOSITORY

from weir_client.testing import Node, NodeError, find_program

pytest_plugins = ["pytester"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_ends_with_its_block_and_removes_its_folder() -> None:
    with Node() as node, node.client() as weir:
        assert weir.is_ready() and is_running(node.pid) and (node.folder / "data").is_dir()
        assert '"level":"INFO"' in node.log()
    assert not is_running(node.pid) and not node.folder.exists()
    node.stop()


def test_settings_of_the_environment_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_LISTEN", "not an address")
    monkeypatch.setenv("WEIR_TOKEN", "not for this node")
    with Node() as node, node.client() as weir:
        assert weir.status()["state"] == "ready"


def test_a_node_that_does_not_start_reports_its_log() -> None:
    with pytest.raises(NodeError, match="(?s)did not start:.*no-such-option"):
        Node(arguments=["--no-such-option"])


def test_a_killed_node_is_reported_at_its_end() -> None:
    node = Node()
    os.kill(node.pid, 9)
    with pytest.raises(NodeError, match="status -9"):
        node.stop()
    assert not node.folder.exists()


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="no-such-weir is not a program"):
        find_program("no-such-weir")
    monkeypatch.delenv("WEIR_PROGRAM")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NodeError, match="name it in WEIR_PROGRAM"):
        find_program()


def test_fixtures_share_a_node_between_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "clients/python/src"))
    pytester.makepyfile(
        """
        nodes = []

        def test_first(weir, weir_node):
            assert weir.status()["functions"] == 0
            nodes.append(weir_node)

        def test_second(weir, weir_node):
            assert weir.is_ready() and nodes == [weir_node]
        """
    )
    result = pytester.runpytest_subprocess("-p", "pytest_weir", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
