"""A scene: a queue, its log and what its callers said, laid out by hand for the tests of the oracle."""

from __future__ import annotations

from typing import Any

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Head, Leases
from fdbqueue.layers.oplog._oplog import OperationLog, calling
from tests.chaos.history import OK, Told, told_claims, told_leases, value_of
from tests.chaos.kinds import Kind, log_of, queue_of
from tests.chaos.oracle import Verdict, judge
from tests.chaos.rules import Rules
from tests.helpers.clock import Clock


class Scene:
    """A queue of some kind, its log, and what its callers said."""

    def __init__(self, db: Any, space: Subspace, kind: Kind) -> None:
        self.raw = db
        self.kind = kind
        self.queue: Queue = queue_of(space, kind)
        self.log: OperationLog = log_of(space, kind)
        self.clock = Clock()
        self.db = self.log.of(db, by="me", clock=self.clock)
        self.leases = Leases(self.queue, clock=self.clock)
        self.calls: list[Told] = []

    def told(self, verb: str, asked: dict[str, Any], answer: dict[str, Any] | None = None, outcome: str = OK) -> Told:
        """Note a call and what its caller was told."""
        told = Told("me", len(self.calls), verb, asked, 0.0, outcome, answer or {})
        self.calls.append(told)
        return told

    def enqueue(self, name: str, **terms: Any) -> Any:
        told = self.told("enqueue later", {"name": name, "count": 1, "size": 10, "headers": terms.get("headers")})
        with calling(f"enqueue later#{told.number}"):
            return self.leases.enqueue(self.db, value_of(name, 0, 10), **terms)

    def lease(self, **terms: Any) -> Any:
        told = self.told("lease", {})
        with calling(f"lease#{told.number}"):
            lease = self.leases.lease(self.db, consumer="me", **terms)
        told.answer = {"leases": told_leases([lease] if lease else [])}
        return lease

    def lease_by(self, *heads: Head) -> list[Any]:
        """Lease an item by each of some heads, in one transaction."""
        tr = self.db.create_transaction()
        leases = [Leases(self.queue, clock=self.clock, head=head).lease(tr, consumer="me") for head in heads]
        tr.commit().wait()
        return leases

    def ack(self, lease: Any) -> None:
        told = self.told("ack", {"claims": told_claims([lease])})
        with calling(f"ack#{told.number}"):
            self.leases.ack(self.db, lease)

    def behind_the_back(self, change: Any) -> None:
        """Change the queue past its verbs, and say so in the log."""
        tr = self.db.create_transaction()
        change(tr)
        tr.commit().wait()

    def broken(self) -> set[str]:
        """Return the names of the promises that the oracle finds broken."""
        return {name for name, found in self.judged().violations.items() if found}

    def judged(self) -> Verdict:
        """Return what the oracle finds."""
        return judge(self.raw, self.queue.layout, self.log, self.calls, Rules(self.kind, 6))
