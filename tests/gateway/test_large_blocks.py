"""Large blocks that are let go of are no part of the process any more, whatever lies between them."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
from penstock.gateway.process import give_large_blocks_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "given back":
    give_large_blocks_back()
block = b"x" * (5 << 20)
del block  # one was freed
before, blocks, between = resident(), [], []
for _ in range(20):
    blocks.append(b"x" * (4 << 20))
    between.append(b"y" * 64_000)
blocks.clear()
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators do not keep them")
def test_a_large_block_is_given_back_when_it_is_let_go_of() -> None:
    left = {}
    for how in ("given back", "kept"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True)
        left[how] = int(done.stdout)
    assert left["given back"] < 8
    assert left["kept"] > 40, "the allocator has changed: is it still needed?"
