"""Groups: items that belong together. Wait for all of them, let one item follow all, or cancel the rest.

Challenge
    A job is split into a thousand items, or a million. A caller wants to know when all have ended, and how. One item
    must follow, exactly once, though many workers end members at the same time.

Keys
    Behind the queue's own tuple:

    ======================================  ================================================================
    ``("group", name, "record")``           its state and its follow-ups
    ``("group", name, "member", index, …)``  empty; a member that has not ended
    ``("group", name, "count", state)``     8 bytes, by atomic adds: members by state
    ``("group", name, "hold", token)``      until when a producer holds it open
    ``("group", name, "cursor")``           where the sweep of a cancelled group goes on
    ``("timer", at_us, 0, name, kind)``     its holds end, its sweep goes on, or it is removed
    ======================================  ================================================================

    The notes of an item name its group.

Ordering
    That of the queue. A follow-up of a group is in its queue from the beginning, delayed, and becomes available in that
    place.

Guarantees
    The transaction that ends the last member ends the group, and releases its follow-ups: exactly once, also when the
    outcome of a commit is unknown. No counter decides that: it looks whether another member is open, and conflicts with
    the end of that one only. So of many workers that end members at the same time, few conflict, and only when the
    group is nearly done.

    An enqueue into a group that is done or cancelled is refused. A producer that is not finished holds the group open,
    for a time that it can extend. If it dies, the time ends, and so does the group, once its members have ended.

    A cancel is one small transaction. From then on no member is taken, and none is added. Members at work run to their
    end; the waiting ones are removed, however many there are. A `Consumer` asks before it begins a member that it has
    read ahead. A consumer of sessions acks behind its work: a cancel may remove a member whose handler has just begun.

Limits
    A member ends when it is acked or dequeued, when it expires or is removed, and when it becomes a dead letter. A dead
    letter that is redriven has left its group. An item belongs to one group, and a group to one queue; follow-ups may
    go to any queue.

Source
    Batches and groups as in Celery's chords and Sidekiq's batches. The counters of a production queue on FoundationDB
    showed what must not decide.
"""

from __future__ import annotations

from ._groups import Groups
from .group import Group, GroupStats

__all__ = ["Group", "GroupStats", "Groups"]
