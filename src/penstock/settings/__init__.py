"""The parts of the settings; `penstock.config` is the door to them.

In reading order: `model` and `tenancy` (what can be set), `section` (what their parts share), `values` and
`address` (how durations, sizes and addresses are written), `source` and `layers` (where values come from),
`checks` (what must fit together), `problems` and `explain` (how a mistake is told).
"""

from __future__ import annotations
