"""The log replayed: a queue's keys, and where its items stand, after each record."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fdbqueue import Position
from fdbqueue.engine.keys import strinc
from fdbqueue.layers.oplog._records import Change, Record, digest, place_of
from fdbqueue.layers.staged.requests import Wish
from fdbqueue.stored.items import Notes
from fdbqueue.stored.layout import Layout
from fdbqueue.stored.settings import HighWaterMark
from fdbqueue.stored.shapes import Due


class Standing(NamedTuple):
    """Where an item stands, and what is known of it there."""

    state: str
    notes: Notes
    content: bytes


@dataclass(slots=True)
class Step:
    """What one record did to the items."""

    record: Record
    before: dict[Position, Standing | None]
    """Of the items that it touched: where they stood; None: nowhere."""
    after: dict[Position, Standing | None]
    twice: list[Position]
    """Those that now stand in two places."""
    counts: Counter[str] = field(default_factory=Counter)
    """What it added to the counters."""
    served: dict[bytes, int] = field(default_factory=dict)
    """The requests that it removed, and how many items each asked for."""
    grants: list[int] = field(default_factory=list)
    """The times of the grants' timers that it removed."""
    moves: list[tuple[Position, Standing | None, Standing | None]] = field(init=False)
    """The items that it touched: where they stood, and where they stand."""
    came: set[bytes] = field(init=False)
    """The contents of items that stood nowhere before."""
    left_the_dead: set[bytes] = field(init=False)
    """The contents of dead letters that stand nowhere now."""
    first_grant_us: int | None = field(init=False)
    """The earliest of `grants`."""

    def __post_init__(self) -> None:
        self.moves = [(position, before, self.after[position]) for position, before in self.before.items()]
        self.came = {after.content for _, before, after in self.moves if before is None and after is not None}
        self.left_the_dead = {
            before.content for _, before, after in self.moves if before and before.state == "dead" and after is None
        }
        self.first_grant_us = min(self.grants, default=None)


class Replay:
    """A queue as the log tells it: a plain dictionary of keys, beside what they mean."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.values: dict[bytes, bytes] = {}
        """Keys behind the queue's prefix; numbers as they are, all else as digests."""
        self._keys: list[bytes] = []
        self.items: dict[Position, dict[str, Standing]] = {}
        self.available: list[Position] = []
        self.sizes: Counter[str] = Counter()
        self.timers: dict[Position, set[tuple[int, str]]] = {}
        self.counters: Counter[str] = Counter()
        self.requests: dict[bytes, int] = {}
        """How many items each request asks for that stands there, by its key."""
        self.levels: Counter[int] = Counter()
        """What is counted of each rank."""
        self.ranks: Counter[int] = Counter()
        """How many available items each rank has."""
        self.held: Counter[str] = Counter()
        """How many items the consumers of a subscription are noted to have."""
        self._grants: list[int] = []
        self._places: dict[bytes, tuple[str, Position]] = {}
        """What the keys of items mean. To read a key takes longer than to keep what it means."""
        self._timers: dict[bytes, tuple[int, Position, str]] = {}
        self.high_water_mark = 0
        self.ordered = False
        """Whether the queue has an order of its own, in which every enqueue raises the high-water mark."""
        self._request_prefix = layout.requests.key()[len(layout.prefix) :]
        self._timer_prefix = layout.timers.key()[len(layout.prefix) :]
        self._count_prefix = layout.counts.key()[len(layout.prefix) :]
        self._level_prefix = layout.level_counts.key()[len(layout.prefix) :]
        self._held_prefix = layout.held.key()[len(layout.prefix) :]
        self._mark_key = layout.high_water_mark_key[len(layout.prefix) :]

    def step(self, record: Record) -> Step:
        """Apply a record."""
        before: dict[Position, Standing | None] = {}
        counts: Counter[str] = Counter()
        requests = dict(self.requests)
        self._grants = []
        for change in record.changes:
            self._apply(change, before, counts)
        after = {position: self.standing(position) for position in before}
        twice = [position for position in before if len(self.items.get(position, ())) > 1]
        served = {key: wanted for key, wanted in requests.items() if key not in self.requests}
        return Step(record, before, after, twice, counts, served, self._grants)

    def standing(self, position: Position) -> Standing | None:
        """Return where an item stands."""
        places = self.items.get(position)
        return next(iter(places.values())) if places else None

    def under(self, prefix: bytes) -> list[bytes]:
        """Return the keys with a prefix, in order."""
        begin, end = bisect_left(self._keys, prefix), bisect_left(self._keys, strinc(prefix))
        return self._keys[begin:end]

    def live_index(self) -> int:
        """Return the highest index of an item that is available or away for a while."""
        return max(self.high_water_mark, self.available[-1].index if self.available and not self.ordered else 0)

    def _apply(self, change: Change, before: dict[Position, Standing | None], counts: Counter[str]) -> None:
        match change.operation:
            case "set":
                self._set(change, before)
            case "clear":
                self._clear(change.key, before)
            case "clear_range":
                begin = bisect_left(self._keys, change.key)
                end = bisect_left(self._keys, change.param) if change.param else len(self._keys)
                for key in self._keys[begin:end]:
                    self._clear(key, before)
            case "add":
                total = int.from_bytes(self.values.get(change.key, bytes(8)), "little", signed=True)
                by = int.from_bytes(change.param, "little", signed=True)
                self._put(change.key, (total + by).to_bytes(len(change.param), "little", signed=True))
                if change.key.startswith(self._count_prefix):
                    [name] = self.layout.counts.unpack(self.layout.prefix + change.key)
                    self.counters[name] += by
                    counts[name] += by
                elif change.key.startswith(self._level_prefix):
                    [rank] = self.layout.level_counts.unpack(self.layout.prefix + change.key)
                    self.levels[rank] += by
            case "byte_max":
                self._put(change.key, max(self.values.get(change.key, b""), change.param))
                if change.key == self._mark_key:
                    mark = HighWaterMark.stored(self.values[change.key])
                    self.high_water_mark, self.ordered = mark.index, mark.order is not None
            case "byte_min":
                self._put(change.key, min(self.values.get(change.key, change.param), change.param))
            case other:
                raise NotImplementedError(f"the replay does not know the operation {other}")

    def _set(self, change: Change, before: dict[Position, Standing | None]) -> None:
        if change.key.startswith(self._held_prefix) and change.key not in self.values:
            self.held[self.layout.held.unpack(self.layout.prefix + change.key)[0]] += 1
        self._put(change.key, change.param)
        found = self._places.get(change.key) or place_of(self.layout, change.key)
        if found is not None:
            self._places[change.key] = state, position = found
            before.setdefault(position, self.standing(position))
            notes = msgspec.msgpack.decode(change.notes, type=Notes) if change.notes else Notes()
            places = self.items.setdefault(position, {})
            if state not in places:
                self.sizes[state] += 1
                if state == "available":
                    insort(self.available, position)
                    self._count_rank(position, 1)
            places[state] = Standing(state, notes, change.content)
        elif change.key.startswith(self._request_prefix):
            self.requests[change.key] = msgspec.msgpack.decode(change.notes, type=Wish).wanted
        elif change.key.startswith(self._timer_prefix):
            timer = self._timers.get(change.key) or self.layout.timer_of(self.layout.prefix + change.key)
            assert timer is not None
            self._timers[change.key] = at_us, position, kind = timer
            self.timers.setdefault(position, set()).add((at_us, kind))

    def _clear(self, key: bytes, before: dict[Position, Standing | None]) -> None:
        if key not in self.values:
            return
        del self.values[key]
        del self._keys[bisect_left(self._keys, key)]
        found = self._places.pop(key, None)
        if found is not None:
            state, position = found
            before.setdefault(position, self.standing(position))
            places = self.items[position]
            del places[state]
            self.sizes[state] -= 1
            if state == "available":
                del self.available[bisect_left(self.available, position)]
                self._count_rank(position, -1)
            if not places:
                del self.items[position]
        elif key.startswith(self._request_prefix):
            del self.requests[key]
        elif key.startswith(self._timer_prefix):
            at_us, position, kind = self._timers.pop(key)
            self.timers[position].discard((at_us, kind))
            if kind == Due.GRANT:
                self._grants.append(at_us)
        elif key.startswith(self._held_prefix):
            self.held[self.layout.held.unpack(self.layout.prefix + key)[0]] -= 1

    def _count_rank(self, position: Position, by: int) -> None:
        if position.rank is not None:
            self.ranks[position.rank] += by

    def _put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self._keys, key)
        self.values[key] = value

    def differences(self, rows: list[tuple[bytes, bytes]]) -> list[str]:
        """Compare with the keys and values as they are stored, read around every interface of the queue."""
        stored = {key[len(self.layout.prefix) :]: value for key, value in rows}
        found = [f"{key!r} is stored, and in no record." for key in sorted(stored.keys() - self.values.keys())]
        found += [f"{key!r} is not stored, though recorded." for key in sorted(self.values.keys() - stored.keys())]
        for key, told in self.values.items():
            value = stored.get(key)
            if value is not None and told not in (value, digest(value)):
                found.append(f"{key!r} is stored as {value[:40]!r}, and was recorded otherwise.")
        return found
