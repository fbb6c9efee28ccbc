"""Motions: which items a record moved, why one is gone, and which were taken from the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fdbqueue import Position
from fdbqueue.layers.oplog import Record
from fdbqueue.stored.items import Notes
from fdbqueue.stored.shapes import Due
from tests.chaos.claims import WAITS, Claims
from tests.chaos.faults import SKEW_SECONDS
from tests.chaos.replay import Standing, Step


def now_us(record: Record) -> int:
    """Return the latest time that the record's transaction can have taken for the present one, by its own clock."""
    return max(record.began_at_us, record.at_us)


def is_sharing(call: str) -> bool:
    """Say whether a call may give back or extend leases of its process of its own accord.

    Staged calls and consumers do, and calls of subscriptions whose commit's outcome is unknown; also in a thread that
    finishes what a cancelled call began, and that has no name.
    """
    return call.startswith(("staged lease", "staged dequeue", "consume", *WAITS)) or not call


class Leased(Protocol):
    """What may be leased: an item, or a session's pointer."""

    @property
    def state(self) -> str: ...
    @property
    def notes(self) -> Notes: ...


def is_untaken(step: Step, before: Leased, after: Leased | None) -> bool:
    """Say whether a lease ends since its grant was not taken in time: its attempt does not count.

    The same transaction may lease the item again. Then it has the same attempt under another token. Or it takes the
    item out, or removes it since its life is over, or since its group was cancelled.
    """
    fired = step.first_grant_us is not None and step.first_grant_us <= now_us(step.record)
    if after is None:
        swept = step.counts["deleted"] > 0 and bool(before.notes.group)
        return fired and (step.counts["dequeued"] > 0 or swept or is_expired(step, before))
    if not fired or after.notes.token == before.notes.token:
        return False
    return after.notes.attempt == before.notes.attempt - (after.state != "leased")


def timers_of(standing: Standing | None) -> Iterator[tuple[int, str]]:
    """Yield the timers that an item is to have where it stands."""
    if standing is None:
        return
    if standing.state == "leased":
        yield standing.notes.expires_at_us, Due.LEASE
    if standing.state == "delayed":
        yield standing.notes.visible_at_us, Due.DELAY
    if standing.state in ("available", "delayed") and standing.notes.ttl_at_us:
        yield standing.notes.ttl_at_us, Due.TTL


def is_taken(step: Step, position: Position, before: Standing | None, after: Standing | None) -> bool:
    """Say whether an item was taken from the head, or delivered at once to one who waits for the head."""
    if before is None:
        return after is not None and after.state == "leased"
    if before.state == "dead":
        return False
    if after is None:
        deleted = step.counts["deleted"] > 0
        return before.state == "available" and not deleted and not is_expired(step, before)
    if after.state == "claimed":
        return before.state != "claimed"
    if after.state != "leased":
        return False
    return before.state != "leased" or before.notes.token != after.notes.token


def is_expired(step: Step, before: Leased) -> bool:
    """Say whether an item's time to live was over. A plain dequeue goes by the machine's clock, not by its process'."""
    skew = SKEW_SECONDS * 1e6 if step.record.call.startswith("dequeue") else 0
    return step.counts["expired"] > 0 and 0 < before.notes.ttl_at_us <= now_us(step.record) + skew


def cause_of(step: Step, position: Position, before: Standing, claims: Claims) -> str:
    """Say why an item is gone."""
    if before.state == "claimed":
        return "acked by its stream" if step.counts["dequeued"] > 0 else "vanished"
    if before.state == "dead":
        if before.content in step.came:
            return "redriven to the tail"
        return "purged" if step.counts["purged"] > 0 else "vanished"
    acked = (position, before.notes.token) in claims.used.get(step.record.by, {}).get("ack", ())
    # The process of a consumer may also remove an item that it handles, since it has expired.
    if before.state == "leased" and acked and step.counts["dequeued"] > 0:
        return "acked"
    if is_expired(step, before):
        return "expired"
    if step.record.call.startswith("operate#") and step.counts["deleted"] > 0:
        return "cancelled"
    if step.counts["deleted"] > 0 and (before.notes.held or before.notes.group):
        return "dropped"  # of a cancelled group, or after an item that did not end well
    if step.record.call.startswith("smart#") and step.counts["deleted"] > 0:
        return "deleted by a newcomer"
    return "taken out" if step.counts["dequeued"] > 0 else "vanished"
