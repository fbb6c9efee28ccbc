"""Which process of a parallel run does which tests."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark/"


class OneSpark(LoadFileScheduling):
    """A file's tests run in one process, and all of Spark's in the same one: each process would start a Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)
