"""Ports for addresses that are named before anybody listens there: those of the benchmarks, which run without tests."""

from __future__ import annotations

from benchmarks.ports import BLOCK, LOWEST, free_port, kernels_own, starts_of_blocks

__all__ = ["BLOCK", "LOWEST", "free_port", "kernels_own", "starts_of_blocks"]
