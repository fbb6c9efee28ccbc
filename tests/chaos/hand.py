"""A hand: one thread of a process in a chaos run, which calls one verb after the other and keeps what it was told."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fdbqueue import BulkInterrupted, GroupError, LeaseLost, Queue, StreamError, SubscriptionError, UploadLost
from fdbqueue.agents import AgentError
from fdbqueue.engine import FDBError, Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.sessions import Sessions
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from tests.chaos.faults import ChaosClock
from tests.chaos.history import OK, REFUSED, History
from tests.chaos.kinds import Kind

DURATION_S = 1.0
"""Of leases: shorter than a process is stopped for."""


@dataclass(slots=True)
class Tools:
    """What the hands of one process share."""

    db: Any
    """Logged, and faulty."""
    space: Subspace
    """Of the round."""
    own: Subspace
    """Where they write things of their own."""
    kind: Kind
    queue: Queue
    leases: Leases
    staged: StagedQueue
    subscribed: Subscriptions | None
    """In a round with subscriptions, or an exclusive one."""
    subscriptions: list[Subscription]
    """In a round with subscriptions that anybody serves."""
    smart: SmartQueue | None
    """In a round with smart checks."""
    sessions: Sessions | None
    """In a round with sessions."""
    folder: Path
    """Where the round keeps its files."""
    history: History
    clock: ChaosClock


class Hand:
    """One thread of a process."""

    VERBS: ClassVar[dict[str, int]] = {}
    """What it does, and how often."""

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        self.tools = tools
        self.number = number
        self.dice = random.Random(seed)
        self.named = 0

    def verbs(self) -> dict[str, int]:
        """Return what it does in this kind of round, and how often."""
        return self.VERBS

    def work(self, stop: Path) -> None:
        """Do something, again and again, until a file is there."""
        verbs = self.verbs()
        while not stop.exists():
            self.tools.clock.maybe_jump()
            verb = self.dice.choices(list(verbs), list(verbs.values()))[0]
            getattr(self, verb.replace(" ", "_"))()

    def call(self, verb: str, asked: dict[str, Any], act: Callable[[], dict[str, Any] | None]) -> bool:
        number = self.tools.history.begin(verb, asked)
        answer: dict[str, Any] = {}
        try:
            with calling(f"{verb}#{number}"):
                answer = act() or {}
            outcome = OK
        except LeaseLost as lost:
            outcome, answer = REFUSED, {"lost": len(lost.lost)}
        except (GroupError, StreamError, SubscriptionError, UploadLost) as another:
            outcome, answer = REFUSED, {"why": str(another)}
        except AgentError as error:
            outcome, answer = ("in doubt" if error.in_doubt else REFUSED), {"why": str(error)}
        except FDBError as error:
            outcome, answer = f"error {error.code}", {"where": traceback.format_exc()}
        except BulkInterrupted as stopped:
            not_in = {"missing": stopped.missing, "unknown": stopped.unknown}
            outcome, answer = "interrupted", {"count": stopped.report.items, **not_in}
        self.tools.history.end(number, outcome, answer)
        return outcome == OK

    def name(self) -> str:
        """Return a name that nobody else has."""
        self.named += 1
        return f"{self.by}/{self.number}/{self.named}"

    def pause(self) -> None:
        time.sleep(self.dice.uniform(0, 0.2))

    @property
    def db(self) -> Any:
        return self.tools.db

    @property
    def queue(self) -> Queue:
        return self.tools.queue

    @property
    def leases(self) -> Leases:
        return self.tools.leases

    @property
    def by(self) -> str:
        return self.tools.history.by
