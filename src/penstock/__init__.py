"""Penstock: a flow-control gateway for LLM inference."""

__version__ = "0.1.0"
__distribution__ = "penstock-gateway"  # the name `penstock` belongs to another package in the public index
