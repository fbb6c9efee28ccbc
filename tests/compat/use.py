"""Take everything out of the queues that `make.py` made, and print what was seen as JSON. Runs with any version."""

from __future__ import annotations

import json
import sys
from typing import Any

import fdbqueue
from fdbqueue.layers import (
    Blobs,
    Consumer,
    EarliestDeadline,
    Groups,
    Lease,
    Leases,
    NewState,
    PriorityQueue,
    Results,
    SessionLease,
    Sessions,
    StagedQueue,
    Subscriptions,
)


def problems(db: Any) -> dict[str, Any]:
    """Check what each kind of queue owns."""
    checked: dict[str, Any] = {
        "plain": fdbqueue.Queue("plain", codec="json"),
        "limited": fdbqueue.Queue("limited", codec="str"),
        "large": fdbqueue.Queue("large"),
        "leases": Leases(fdbqueue.Queue("leases", codec="str"), max_attempts=1),
        "subscribed": Subscriptions(Leases(fdbqueue.Queue("subscribed", codec="str"))),
        "bank": Sessions(fdbqueue.Queue("bank", codec="json"), state_codec="json", max_attempts=1),
        "blobs": Blobs(Leases(fdbqueue.Queue("blobs", codec="str"))),
    }
    return {name: list(report.problems) for name, one in checked.items() if not (report := one.check(db)).ok}


def use(db: Any) -> dict[str, Any]:
    """Take everything out; return what was seen, by queue."""
    seen: dict[str, Any] = {"problems": problems(db)}
    plain = fdbqueue.Queue("plain", codec="json")
    pause = plain.paused(db)
    seen["pause"] = None if pause is None else [pause.reason, pause.by]
    assert plain.dequeue(db) is None
    plain.resume(db)
    seen["plain"] = [item.value["n"] for item in plain.dequeue_many(db, limit=100)]

    limited = fdbqueue.Queue("limited", codec="str")
    quota = limited.quota(db)
    seen["quota"] = None if quota is None else quota.items
    seen["limited"] = [item.value for item in limited.dequeue_many(db, limit=100)]
    item = fdbqueue.Queue("large").dequeue(db)
    seen["large"] = item and [len(item.value), item.value[:10].decode()]

    leases = Leases(fdbqueue.Queue("leases", codec="str"), max_attempts=1)
    stats = leases.queue.stats(db)
    seen["states"] = [stats.available, stats.leased, stats.delayed, stats.dead]
    seen["dead"] = [[one.value, one.error] for one in leases.dead.browse(db)]
    leases.dead.redrive(db)
    seen["leases"] = []
    while lease := leases.lease(db):
        seen["leases"].append([lease.value, lease.attempt, dict(lease.headers)])
        leases.ack(db, lease)

    staged = StagedQueue(Leases(fdbqueue.Queue("staged", codec="str")))
    seen["staged"] = [one.value for one in iter(lambda: staged.dequeue(db), None)]
    urgent = PriorityQueue(fdbqueue.Queue("urgent", codec="str"))
    seen["urgent"] = [one.value for one in iter(lambda: urgent.dequeue(db), None)]
    deadlines = fdbqueue.Queue("deadlines", codec="str", order=EarliestDeadline())
    seen["deadlines"] = [one.value for one in iter(lambda: deadlines.dequeue(db), None)]

    subscriptions = Subscriptions(Leases(fdbqueue.Queue("subscribed", codec="str")))
    reds = subscriptions.open("reds")
    seen["reds"] = []
    while got := reds.lease(db):
        seen["reds"].append(got.value)
        reds.ack(db, got)
    seen["not red"] = [one.value for one in subscriptions.leases.queue.browse(db)]

    results = Results(Leases(fdbqueue.Queue("results", codec="str")), type=str)
    worked: list[str] = []

    def work(lease: Lease) -> str:
        worked.append(lease.value)
        return str(lease.value).upper()

    Consumer(results, work, concurrency=1).drain(db)
    seen["results"] = sorted(worked)
    seen["group"] = Groups(results).group(db, "march").stats(db).done

    bank = Sessions(fdbqueue.Queue("bank", codec="json"), state_codec="json", max_attempts=1)
    bank.resume(db, "Bob")

    def book(lease: SessionLease) -> NewState:
        return NewState((lease.state or 0) + lease.value)

    Consumer(bank, book).drain(db)
    seen["bank"] = [bank.state(db, name) for name in ("Ann", "Bob", ("shop", 7))]

    films = Leases(fdbqueue.Queue("blobs", codec="str"))
    film = films.lease(db)
    assert film
    with Blobs(films).read(db, film) as data:
        seen["blob"] = len(data.read())
    films.ack(db, film)
    seen["problems after"] = problems(db)
    return seen


if __name__ == "__main__":
    with fdbqueue.open(sys.argv[1]) as database:
        print(json.dumps(use(database)))
