"""Check that the requests and grants of waiting processes can be read."""

from __future__ import annotations

from fdbqueue import FormatError, Queue
from fdbqueue.lowlevel import CheckPart, Database, ItemCheck, Layout, Transaction
from fdbqueue.reads.check import read_in

from .requests import Requests


class RequestCheck(ItemCheck):
    """Reads all requests and grants. *Cost:* two reads."""

    def __init__(self, tr: Transaction | Database, layout: Layout) -> None:
        self._tr = tr
        self._requests = Requests(layout)

    def problems(self) -> list[str]:
        """Return what can't be read."""
        try:
            read_in(self._tr, self._requests.read_all)
        except FormatError as error:
            return [str(error)]
        return []


def _part(tr: Transaction | Database, queue: Queue) -> RequestCheck:
    return RequestCheck(tr, queue.layout)


CHECK_PART = CheckPart(_part, ("requests", "grants"))
"""What staged queues add to `fdbqueue.check`."""
