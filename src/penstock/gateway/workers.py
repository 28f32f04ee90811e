"""A worker's process: `python -m penstock.gateway.workers`."""

from __future__ import annotations

import sys

from penstock.gateway import early_signals

if __name__ == "__main__":
    early_signals.ignore()  # before the rest is imported, which takes most of the start
    from penstock.gateway.cluster.worker import main
    from penstock.gateway.process import event_loop

    sys.exit(main(event_loop))
