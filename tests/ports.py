"""Ports for addresses that are written into settings before a server listens there; shared with the benchmarks."""

from __future__ import annotations

from benchmarks.ports import BLOCK, LOWEST, free_port, kernels_own, starts_of_blocks

__all__ = ["BLOCK", "LOWEST", "free_port", "kernels_own", "starts_of_blocks"]
