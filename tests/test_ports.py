"""Ports that others can't take while nobody listens there."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.ports import BLOCK, LOWEST, free_port, kernels_own, starts_of_blocks

ALL_OF_A_PROCESS = f"from tests.ports import *; print(*[free_port() for _ in range({BLOCK})])"


def test_none_is_the_kernels_to_choose() -> None:
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        assert chosen.getsockname()[1] in kernels_own()
    assert free_port() not in kernels_own()


def test_processes_that_run_together_have_different_ones() -> None:
    command = [sys.executable, "-W", "error", "-c", ALL_OF_A_PROCESS]
    others = subprocess.run(command, capture_output=True, text=True, check=True)
    assert others.stderr == "", "at its end nothing is told as left open"
    theirs = {int(port) for port in others.stdout.split()}
    ours = {free_port() for _ in range(BLOCK)}
    assert len(theirs) > BLOCK / 2
    assert len(ours) > BLOCK / 2
    assert theirs.isdisjoint(ours)


def test_a_port_in_use_is_skipped() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in {free_port() for _ in range(2 * BLOCK)}
    assert taken in {free_port() for _ in range(2 * BLOCK)}, "and comes back"


@pytest.mark.parametrize(
    ("kernels", "first"),
    [(range(32_768, 61_000), LOWEST), (range(1_024, 61_000), 61_184)],
    ids=["as usual", "from 1024 on"],
)
def test_blocks_are_outside_the_kernels_own_range(kernels: range, first: int) -> None:
    starts = starts_of_blocks(kernels)
    assert starts[0] == first
    assert not any(port in kernels for start in starts for port in range(start, start + BLOCK))


def test_there_are_blocks_even_if_the_kernel_uses_all_ports() -> None:
    assert len(starts_of_blocks(range(1_024, 65_536))) > 100
