"""How do files of tests come to several processes? Whole, as by xdist's `loadfile`; and one that dies harms no other.

A test that hangs ends its process (`timeout` in pyproject.toml), and another process takes its place. xdist would give
it the same test again, which would hang as long; and where two die at about the same time, it gives work to a process
that still collects its tests, which ends the run.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it says nothing of its types
    """Gives whole files, in the order in which they were collected."""

    def _reschedule(self, node: Any) -> None:
        if node in self.registered_collections:  # else it still collects, and comes by itself
            super()._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """A process has ended. Returns the test that it ran, which does not run again; None: it had nothing to do."""
        left = {file: tests for file, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        first = next(iter(left.values()))
        crashed: str = next(test for test, is_over in first.items() if not is_over)
        first[crashed] = True
        self.workqueue.update({file: tests for file, tests in left.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed
