"""Processes of a round with results: they enqueue items with completions, follow-ups and groups, and wait for ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from fdbqueue import CompletionError
from fdbqueue.layers.groups import Group, Groups
from fdbqueue.layers.leases import Lease
from fdbqueue.layers.results import FollowUp, Results
from tests.chaos.consumers import Taker
from tests.chaos.hand import Hand, Tools
from tests.chaos.history import told_claims, value_of

SIZE = 40
KEEPS_S = (0.2, 3_600.0)
"""For how long outcomes and groups are kept: some are gone within the round."""
GROUP_SECONDS = 0.5
"""For so long all processes work on the group of the same name: many groups end while others add members to them."""
REMEMBERED = 30


class GroupHand(Hand):
    """A hand of a round with results, which can add members to a group."""

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self._results = Results(self.leases)

    def _values(self, count: int) -> tuple[dict[str, Any], list[bytes]]:
        name = self.name()
        asked = {"name": name, "count": count, "size": SIZE, "headers": None}
        return asked, [value_of(name, n, SIZE) for n in range(count)]

    def _group(self) -> Group:
        """Return the group that all processes work on at this time."""
        source: Any = self.dice.choice([self.leases, self._results])
        return Groups(source).group(self.db, f"group {int(time.monotonic() / GROUP_SECONDS)}")

    def join(self) -> None:
        """Add a member to a group that may end at this moment."""
        asked, [value] = self._values(1)
        group = self._group()

        def act() -> None:
            group.enqueue(self.db, value)

        self.call("join", asked, act)


class Requester(GroupHand):
    """Enqueues items whose ends matter, and waits for them."""

    VERBS: ClassVar[dict[str, int]] = {
        "request": 8,
        "group": 4,
        "join": 16,
        "cancel": 1,
        "wait": 4,
        "wait for a group": 2,
        "rest": 4,
    }

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self._requested: list[str] = []

    def request(self) -> None:
        """Enqueue an item with a completion and up to two follow-ups, some of which have completions too."""
        asked, [value, *others] = self._values(1 + self.dice.choice([0, 1, 1, 2]))
        then = [FollowUp(self.dice.choice([self.leases, self._results]), other) for other in others]
        terms: dict[str, Any] = self.dice.choice([{}, {}, {}, {"delay": 0.3}, {"ttl": 1.0}])

        def act() -> dict[str, Any]:
            keep = self.dice.choice(KEEPS_S)
            completion = self._results.enqueue(self.db, value, then=then, keep=keep, **terms)
            self._requested = [*self._requested, str(completion)][-REMEMBERED:]
            return {"completion": str(completion)}

        self.call("request", asked, act)

    def wait(self) -> None:
        if self._requested:
            text = self.dice.choice(self._requested)
            completion = self._results.completion(self.db, text)
            self.call("wait", {"of": text}, lambda: _told_of(completion, self.dice.choice([0.0, 0.2])))

    def group(self) -> None:
        """Open a group with a follow-up, add members, and close it, or leave it to its hold."""
        asked, [follow_up] = self._values(1)
        name = self._group().name
        hold, keep = self.dice.choice([0.2, 5.0]), self.dice.choice(KEEPS_S)
        opened: list[Group] = []

        def act() -> None:
            then = FollowUp(self.leases, follow_up)
            opened.append(Groups(self.leases).open(self.db, name, then=then, hold=hold, keep=keep))

        if not self.call("open group", asked, act):
            return
        asked, values = self._values(self.dice.choice([1, 2, 5]))
        self.call("fill group", asked, lambda: {"count": opened[0].enqueue_many(self.db, values)})
        if self.dice.random() < 0.8:
            self.call("close group", {"group": name}, lambda: opened[0].close(self.db))

    def cancel(self) -> None:
        group = self._group()
        self.call("cancel group", {"group": group.name}, lambda: {"stats": str(group.cancel(self.db))})

    def wait_for_a_group(self) -> None:
        group = self._group()
        self.call("wait for a group", {"group": group.name}, lambda: _told_of(group, self.dice.choice([0.0, 0.2])))

    def rest(self) -> None:
        time.sleep(self.dice.uniform(0, 0.1))


class Worker(Taker, GroupHand):
    """Takes items, and acks most of them at once, with results and follow-ups."""

    VERBS: ClassVar[dict[str, int]] = {
        "lease": 6,
        "lease many": 6,
        "staged lease": 4,
        "staged lease many": 2,
        "ack with result": 20,
        "ack newest": 16,
        "ack many": 10,
        "ack twice": 6,
        "ack apart": 10,
        "ack and join": 10,
        "staged ack": 3,
        "ack in my transaction": 2,
        "nack": 2,
        "nack later": 1,
        "snooze": 1,
        "extend": 1,
        "consume": 1,
    }

    def ack_with_result(self) -> None:
        self.ack()

    def ack_apart(self) -> None:
        """Ack the newest leases at the same time, each by a call of its own: often they are the last of a group."""
        newest = self.held[-4:]
        with ThreadPoolExecutor(4) as threads:
            for ack in [threads.submit(self._ack, lease) for lease in newest]:
                ack.result()

    def ack_and_join(self) -> None:
        """Ack the newest lease, and add a member at the same time to the group that it may be the last of."""
        with ThreadPoolExecutor(2) as threads:
            joining = threads.submit(self.join)
            if self.held:
                self._ack(self.held[-1])
            joining.result()

    def _ack(self, lease: Lease) -> None:
        """Ack with a result and a follow-up, whose content depends on the item only: a second one is noticed."""
        # A follow-up of a follow-up would have no end.
        name = "" if lease.value.startswith(b"after ") else f"after {lease.position.text}"
        result = f"{lease.token.hex()} by {self.by}"
        asked: dict[str, Any] = {"claims": told_claims([lease]), "result": result}
        if name:
            asked |= {"name": name, "count": 1, "size": SIZE, "headers": None}
        then = [FollowUp(self.leases, value_of(name, 0, SIZE))] if name else []

        def act() -> None:
            self.leases.ack(self.db, lease, result=result, then=then)

        self.call("ack with result", asked, act)


def _told_of(one: Any, timeout: float) -> dict[str, Any]:
    """Wait for an end, and return what a history keeps of it."""
    try:
        return {"ended": "done", "result": str(one.wait(timeout=timeout))}
    except CompletionError as error:
        return {"ended": error.outcome}
    except TimeoutError:
        return {}
