"""A picker behind real Envoy, and its messages."""
