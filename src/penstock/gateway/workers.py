"""A worker's process: `python -m penstock.gateway.workers`."""

from __future__ import annotations

import sys

from penstock.gateway.cluster.worker import main
from penstock.gateway.process import event_loop

if __name__ == "__main__":
    sys.exit(main(event_loop))
