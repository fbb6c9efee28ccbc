"""Processes of a round with sessions: they enqueue, work through turns, operate, and take all out at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from fdbqueue import Queue
from fdbqueue.layers.leases import Backoff
from fdbqueue.layers.oplog._oplog import calling
from fdbqueue.layers.sessions import Gate, SessionLease, Sessions
from tests.chaos.hand import DURATION_S, Hand, Tools
from tests.chaos.history import OK, History, content, value_of
from tests.chaos.kinds import GATES, MAX_ATTEMPTS, QUANTUM, SESSION_LEVELS, SESSIONS, Kind, gates_of

REMEMBERED = 20
"""Leases that a hand remembers after it used them; it uses lost ones too."""
AHEAD = (3, 3, 30, 100)
"""A producer rests until fewer items wait: few, so that sessions end, or many, so that turns do."""


def sessions_of(
    queue: Queue, backoff: Backoff | None, clock: Callable[[], float], *, consumer: str, kind: Kind
) -> Sessions[bytes]:
    """Return the round's sessions."""
    gated = kind is Kind.gates
    return Sessions(
        queue,
        gates=(lambda session: [Gate(gate, GATES[gate]) for gate in gates_of(session)]) if gated else None,
        levels=SESSION_LEVELS,
        quantum=QUANTUM,
        max_attempts=MAX_ATTEMPTS,
        backoff=backoff,
        consumer=consumer,
        clock=clock,
    )


def asked_of(lease: SessionLease[bytes]) -> dict[str, Any]:
    """Return what a history keeps of a lease that is used."""
    return {"lease": [repr(lease.session), lease.position.text, lease.token.hex()]}


def told_of(lease: SessionLease[bytes] | None) -> dict[str, Any]:
    """Return what a history keeps of a lease that a call returned."""
    if lease is None:
        return {}
    told = [repr(lease.session), lease.position.text, lease.token.hex(), content(lease.value, lease.headers).hex()]
    return {"session leases": [told]}


class SessionHand(Hand):
    """A hand of a round with sessions."""

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        if tools.sessions is None:
            raise RuntimeError("there are no sessions in this round")
        self.sessions = tools.sessions


class SessionProducer(SessionHand):
    """Enqueues items into sessions."""

    VERBS: ClassVar[dict[str, int]] = {
        "plain": 6,
        "urgent": 3,
        "later": 2,
        "mortal": 1,
        "large": 1,
        "several": 4,
        "rest": 4,
    }

    def _enqueue(self, count: int, *, size: int = 40, level: int = 1, **terms: Any) -> None:
        name = self.name()
        sessions = [self.dice.choice(SESSIONS) for _ in range(count)]
        values = [value_of(name, n, size) for n in range(count)]
        route = dict(zip(values, sessions, strict=True))
        asked = {"name": name, "count": count, "size": size, "headers": None, "sessions": sessions, "level": level}

        def act() -> dict[str, Any]:
            report = self.sessions.enqueue_many(self.db, values, session=route.__getitem__, level=level, **terms)
            return {"count": report.items}

        self.call("session enqueue", asked, act)

    def plain(self) -> None:
        self._enqueue(1)

    def urgent(self) -> None:
        self._enqueue(1, level=0)

    def later(self) -> None:
        self._enqueue(1, delay=self.dice.uniform(0, 1.5))

    def mortal(self) -> None:
        self._enqueue(1, ttl=self.dice.uniform(0.2, 20))

    def large(self) -> None:
        self._enqueue(1, size=200_000)

    def several(self) -> None:
        self._enqueue(self.dice.choice([2, 5, 20]))

    def rest(self) -> None:
        waiting, most = [0], self.dice.choice(AHEAD)

        def act() -> None:
            waiting[0] = self.sessions.stats(self.db).available

        while self.call("look", {}, act) and waiting[0] > most and self.dice.random() < 0.9:
            time.sleep(0.05)


class SessionWorker(SessionHand):
    """Leases sessions, works through their turns, and uses leases that are lost."""

    VERBS: ClassVar[dict[str, int]] = {
        "turn": 20,
        "lease": 2,
        "ack": 3,
        "ack and next": 3,
        "nack": 1,
        "extend": 1,
        "edit": 2,
    }

    def __init__(self, tools: Tools, number: int, seed: str) -> None:
        super().__init__(tools, number, seed)
        self.held: list[SessionLease[bytes]] = []

    def lease(self) -> SessionLease[bytes] | None:
        timeout = self.dice.choice([0.0, 0.01, 0.2])
        return self._told(
            "session lease", {}, lambda: self.sessions.lease(self.db, duration=DURATION_S, timeout=timeout)
        )

    def turn(self) -> None:
        """Lease a session and do its items, each ended in one of all ways."""
        lease = self.lease()
        while lease is not None:
            time.sleep(self.dice.choice([0.0, 0.0, 0.002, 0.02]))
            match self.dice.randrange(24):
                case 0:
                    return  # the lease is forgotten, or used late
                case 1:
                    self._nack(lease)
                    return
                case 2:
                    self._use("session snooze", lease, lambda one: self.sessions.snooze(self.db, one, delay=0.2))
                    return
                case 3 | 4:
                    self._ack(lease)
                    return
                case 5:
                    self._extend(lease)
                case 6:
                    self._edit(lease)
                    lease = self._next(lease)  # it is refused
                case _:
                    lease = self._next(lease)

    def ack(self) -> None:
        self._old(self._ack)

    def ack_and_next(self) -> None:
        self._old(self._next)

    def nack(self) -> None:
        self._old(self._nack)

    def extend(self) -> None:
        self._old(self._extend)

    def edit(self) -> None:
        self._old(self._edit)

    def _old(self, use: Callable[[SessionLease[bytes]], Any]) -> None:
        if self.held:
            use(self.dice.choice(self.held))

    def _ack(self, lease: SessionLease[bytes]) -> None:
        self._use("session ack", lease, lambda one: self.sessions.ack(self.db, one))

    def _nack(self, lease: SessionLease[bytes]) -> None:
        delay = self.dice.choice([None, 0.0, 0.5])
        self._use("session nack", lease, lambda one: self.sessions.nack(self.db, one, delay=delay))

    def _extend(self, lease: SessionLease[bytes]) -> None:
        self._use("session extend", lease, lambda one: self.sessions.extend(self.db, one, duration=DURATION_S))

    def _edit(self, lease: SessionLease[bytes]) -> None:
        """Change the item of a lease as an operator does, by its position: in progress here or elsewhere, or waiting.

        Sessions with gates are left alone: their promises count every item that begins.
        """
        if self.tools.kind is Kind.gates:
            return
        changes: dict[str, dict[str, Any]] = {
            "cancel": {},
            "update": {"headers": {"edited": self.dice.randrange(1_000)}},
            "reschedule": {"delay": self.dice.choice([0.0, 0.0, 0.5])},
        }
        verb = self.dice.choice([*changes])
        edit = getattr(self.sessions, verb)

        def act() -> dict[str, Any]:
            return {"fate": str(edit(self.db, lease.session, lease.position, **changes[verb]))}

        self.call("session edit", {}, act)

    def _next(self, lease: SessionLease[bytes]) -> SessionLease[bytes] | None:
        def act() -> SessionLease[bytes] | None:
            return self.sessions.ack_and_next(self.db, lease, duration=DURATION_S)

        return self._told("session ack and next", asked_of(lease), act)

    def _use(self, verb: str, lease: SessionLease[bytes], use: Callable[[SessionLease[bytes]], Any]) -> None:
        self.call(verb, asked_of(lease), lambda: {"fate": str(use(lease))})

    def _told(
        self, verb: str, asked: dict[str, Any], act: Callable[[], SessionLease[bytes] | None]
    ) -> SessionLease[bytes] | None:
        got: list[SessionLease[bytes]] = []

        def answer() -> dict[str, Any]:
            lease = act()
            if lease is not None:
                got.append(lease)
            return told_of(lease)

        self.call(verb, asked, answer)
        self.held = [*self.held, *got][-REMEMBERED:]
        return got[0] if got else None


class SessionKeeper(SessionHand):
    """Operates sessions: reclaims, redrives, pauses, and looks."""

    VERBS: ClassVar[dict[str, int]] = {"reclaim": 4, "redrive": 3, "stop and go": 2, "look": 2, "pause": 4}

    def reclaim(self) -> None:
        self.call("reclaim", {}, lambda: {"count": len(self.sessions.reclaim(self.db, limit=100).reclaimed)})

    def redrive(self) -> None:
        name = self.dice.choice(SESSIONS)
        self.call("session redrive", {}, lambda: {"count": self.sessions.redrive(self.db, name, limit=30)})

    def stop_and_go(self) -> None:
        """Pause a session for a while. Another keeper, or the end, resumes it if this one is killed."""
        name = self.dice.choice(SESSIONS)
        self.call("session pause", {}, lambda: self.sessions.pause(self.db, name))
        self.pause()
        self.call("session resume", {}, lambda: self.sessions.resume(self.db, name))

    def look(self) -> None:
        """Look at all that can be looked at, which changes nothing."""

        def act() -> None:
            self.sessions.stats(self.db)
            list(self.sessions.list(self.db))
            self.sessions.info(self.db, self.dice.choice(SESSIONS))

        self.call("look", {}, act)


class GateKeeper(SessionKeeper):
    """Also changes the limits of gates."""

    VERBS: ClassVar[dict[str, int]] = {**SessionKeeper.VERBS, "limit": 6}

    def limit(self) -> None:
        gate, limit = self.dice.choice([*GATES]), self.dice.choice([None, 0, 1, 1, 2, 4])
        self.call("gate limit", {}, lambda: self.sessions.set_limit(self.db, gate, limit))

    def look(self) -> None:
        super().look()
        self.call("look", {}, lambda: {"count": len(list(self.sessions.gates(self.db)))})


def drain_sessions(db: Any, queue: Queue, history: History, *, clock: Callable[[], float], kind: Kind) -> None:
    """Do all items that are there, as a worker whose clock says that all times have come."""
    sessions = sessions_of(queue, None, clock, consumer="drain", kind=kind)
    for gate in GATES:
        sessions.set_limit(db, gate, None)
    for name in SESSIONS:
        sessions.resume(db, name)
    while True:
        while sessions.reclaim(db).more:
            continue
        redriven = sum(sessions.redrive(db, name) for name in SESSIONS)
        lease = _drained(db, sessions, history)
        if not redriven and not lease:
            return


def _drained(db: Any, sessions: Sessions[bytes], history: History) -> int:
    """Lease and ack until nothing is ready; return how many items."""
    done = 0
    while True:
        number = history.begin("session lease", {})
        with calling(f"session lease#{number}"):
            lease = sessions.lease(db)
        history.end(number, OK, told_of(lease))
        if lease is None:
            return done
        number = history.begin("session ack", asked_of(lease))
        with calling(f"session ack#{number}"):
            sessions.ack(db, lease)
        history.end(number, OK, {})
        done += 1


def check_of_sessions(db: Any, queue: Queue) -> list[str]:
    """Return the problems that the check of drained sessions finds."""
    sessions: Sessions[bytes] = Sessions(queue)
    stats = sessions.stats(db)
    left = [f"after the drain the totals are {stats}"] if stats.available or stats.ready or stats.gated else []
    left += [f"after the drain there is {gate}" for gate in sessions.gates(db)]
    return [*sessions.check(db).problems, *left]
