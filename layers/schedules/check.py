"""Check that the records of schedules can be read, and tell which of them no worker serves."""

from __future__ import annotations

from fdbqueue import FormatError, Queue
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, Transaction, pages
from fdbqueue.stored.own_rows import own_rows

from ._schedules import read_schedule, stopped_at

__all__ = ["stopped_at"]


class ScheduleCheck(ItemCheck):
    """Reads the records of all schedules of a queue. *Cost:* one range read."""

    def __init__(self, tr: Transaction | Database, queue: Queue) -> None:
        self._tr = tr
        self._layout = queue.layout

    def problems(self) -> list[str]:
        """Return what can't be read."""
        problems = []
        span = self._layout.space["schedule"].range()
        for page in pages(self._tr, span.start, span.stop):
            for _, row in own_rows(self._layout, "schedule", page):
                try:
                    read_schedule(self._layout, row.key, row.value)
                except FormatError as error:
                    problems.append(str(error))
        return problems


CHECK_PART = CheckPart(ScheduleCheck, ("schedules",))
"""What schedules add to `fdbqueue.check`."""
