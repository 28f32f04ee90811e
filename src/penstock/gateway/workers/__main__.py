"""A worker's process."""

from __future__ import annotations

import sys

from penstock.gateway.process import event_loop
from penstock.gateway.workers.worker import main

if __name__ == "__main__":
    sys.exit(main(event_loop))
