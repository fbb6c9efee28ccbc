"""Schedules under any order of workers, clocks, versions of the code and operators: no tick comes twice."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import FDBError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import Tasks
from fdbqueue.layers.schedules.schedules import Cron, Every, Times, first_after
from tests.helpers.clock import Clock
from tests.helpers.tasks import fire_in

RULES: list[dict[str, Any]] = [
    {"every": 60},
    {"every": 90, "catch_up": "all"},
    {"every": 60, "catch_up": "none"},
    {"cron": "*/3 * * * *"},
    {"cron": "*/2 * * * *", "tz": "Europe/Zurich", "catch_up": "all"},
]
WORKERS = 3
SKEWS = [-7_200.0, -30.0, 0.0, 0.0, 30.0, 600.0]
WORKER = st.integers(0, WORKERS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), WORKER),
        st.tuples(st.just("tick"), WORKER),
        st.tuples(st.just("begin"), WORKER),
        st.tuples(st.just("end"), WORKER),
        st.tuples(st.just("move"), st.sampled_from([1.0, 20.0, 60.0, 61.0, 400.0, 4_000.0])),
        st.tuples(st.sampled_from(["pause", "resume", "reset"]), st.just(0)),
        st.tuples(st.just("change"), st.sampled_from(["*/5 * * * *", "1 * * * *"])),
    ),
    max_size=40,
)


def times_of(rule: dict[str, Any]) -> Times:
    return Every(rule["every"]) if "every" in rule else Cron(rule["cron"], rule.get("tz", "UTC"))


@dataclass
class World:
    """Workers with their own code and clocks, an operator, and what they did."""

    db: Any
    space: Subspace
    clock: Clock
    rules: list[dict[str, Any]]
    skews: list[float]
    apps: list[Tasks] = field(default_factory=list)
    stopped: dict[int, Any] = field(default_factory=dict)
    """Transactions of workers that have written a tick, and are stopped before their commit."""

    def __post_init__(self) -> None:
        for rule, skew in zip(self.rules, self.skews, strict=True):
            app = Tasks(self.space, clock=lambda skew=skew: self.clock.now + skew)  # type: ignore[misc]
            given = dict(rule)
            cron = [given.pop("cron")] if "cron" in given else []
            app.periodic(*cron, **given)(app.task(name="work")(work))
            self.apps.append(app)

    def step(self, what: str, given: Any) -> None:
        schedules = self.apps[0].schedules
        if what == "move":
            self.clock.now += given
        elif what == "start":
            self.apps[given].schedules.note_plans(self.db, self.apps[given].plans)
        elif what == "tick":
            self.apps[given].schedules.fire(self.db, self.apps[given].plans)
        elif what == "begin":
            tr = self.db.create_transaction()
            fire_in(tr, self.apps[given])
            self.stopped[given] = tr
        elif what == "end":
            if (tr := self.stopped.pop(given, None)) is not None:
                with contextlib.suppress(FDBError):  # a conflict, or it is too old
                    tr.commit().wait()
        elif schedules.list(self.db):
            if what == "change":
                schedules.change(self.db, "work", given)
            else:
                getattr(schedules, what)(self.db, "work")


def work() -> None: ...


@given(
    st.lists(st.sampled_from(RULES), min_size=WORKERS, max_size=WORKERS),
    st.lists(st.sampled_from(SKEWS), min_size=WORKERS, max_size=WORKERS),
    STEPS,
)
def test_no_tick_comes_twice_and_each_is_one_of_a_rule(
    db: Any, space: Subspace, rules: list[dict[str, Any]], skews: list[float], steps: list[tuple[str, Any]]
) -> None:
    own, clock = space[secrets.token_hex(4)], Clock(1_700_000_000.0 // 3600 * 3600)
    world = World(db, own, clock, rules, skews)
    for step in [("start", 0), *steps, *[("end", worker) for worker in range(WORKERS)]]:
        world.step(*step)

    ticks = [dt.datetime.fromisoformat(item.headers["tick"]) for item in Queue(own, codec="json").browse(db)]
    assert ticks == sorted(set(ticks))
    known = [*map(times_of, rules), Cron("*/5 * * * *"), Cron("1 * * * *"), Cron("*/5 * * * *", "Europe/Zurich")]
    for tick in ticks:
        at_us = int(tick.timestamp() * 1e6)
        assert any(first_after(times, at_us - 1) == at_us for times in known)
    [record] = world.apps[0].schedules.list(db)
    assert record.last_at is None or not ticks or record.last_at >= ticks[-1].timestamp()


@given(st.lists(st.tuples(WORKER, st.sampled_from([0.0, 1.0, 30.0, 60.0, 61.0, 600.0])), max_size=30))
def test_all_ticks_come_if_all_are_wanted(db: Any, space: Subspace, looks: list[tuple[int, float]]) -> None:
    own, clock = space[secrets.token_hex(4)], Clock(1_700_000_000.0 // 3600 * 3600)
    rules = [{"every": 60, "catch_up": "all"}] * WORKERS
    world = World(db, own, clock, rules, [0.0, -30.0, 20.0])
    for worker in range(WORKERS):
        world.step("start", worker)
    began = clock.now
    for worker, seconds in looks:
        clock.now += seconds
        world.step("tick", worker)
    world.step("tick", 0)

    ticks = [dt.datetime.fromisoformat(item.headers["tick"]) for item in Queue(own, codec="json").browse(db)]
    seconds_of = [round(tick.timestamp() - began) for tick in ticks]
    assert seconds_of == list(range(60, 60 * len(ticks) + 1, 60))
    assert (clock.now - began) // 60 <= len(ticks) <= (clock.now + 20 - began) // 60
