"""The known uses of the pattern, each small enough to be copied.

From "Smart Queue" (Herzner, Thuswald), and the patterns that it names: Merge Compatible Events (Wake et al.), Five
Minutes of no Escalation and George Washington Is Still Dead (Adams et al.), Bottom Line (Hanmer, Stymfal).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue import Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import NOTHING, OWN_KEY, OWN_TYPE, Limit, Messages, MessageType, SmartQueue, keyed
from fdbqueue.layers.smart.types import Answer, Asked, Decision, Replace
from tests.helpers.clock import Clock


def queue_of(space: Subspace, *types: MessageType, clock: Clock | None = None, **terms: Any) -> SmartQueue:
    return SmartQueue(Leases(Queue(space, codec=Messages(*types)), clock=clock or Clock()), **terms)


def drained(smart: SmartQueue, db: Any) -> Iterator[Any]:
    while (item := smart.dequeue(db)) is not None:
        yield item.value


@dataclass
class Progress:
    """A copying process tells a slow display how far it is."""

    file: str
    percent: int

    def check(self, new: Answer) -> Answer:
        # The display has not come to me yet, so I am outdated. I may pass others: nobody minds.
        return Replace(new)


def test_a_progress_display_is_shown_the_newest_report_of_each_file(db: Any, space: Subspace) -> None:
    display = queue_of(space, MessageType("progress", Progress, key=lambda report: report.file, sees=OWN_KEY))
    for percent in range(0, 100, 10):
        display.enqueue(db, Progress("a.iso", percent))
        display.enqueue(db, Progress("b.iso", percent // 2))
    assert list(drained(display, db)) == [Progress("a.iso", 90), Progress("b.iso", 45)]


class Expose(msgspec.Struct):
    """A part of a window is to be drawn again."""

    window: int
    left: int
    top: int
    right: int
    bottom: int

    def check(self, new: Any) -> Answer:
        if not isinstance(new, Expose):
            return Decision.dont_care
        self.left, self.top = min(self.left, new.left), min(self.top, new.top)
        self.right, self.bottom = max(self.right, new.right), max(self.bottom, new.bottom)
        return Decision.ignore


class Key(msgspec.Struct):
    """A key was pressed in a window: that is never merged."""

    window: int
    key: str


def test_compatible_events_are_merged_and_others_are_kept(db: Any, space: Subspace) -> None:
    events = queue_of(
        space,
        MessageType("expose", Expose, key=lambda event: event.window, sees=OWN_KEY),
        MessageType("key", Key, key=lambda event: event.window, sees=NOTHING),
    )
    events.enqueue_many(
        db,
        [
            Expose(1, 10, 10, 20, 20),
            Key(1, "a"),
            Expose(2, 0, 0, 5, 5),
            Expose(1, 5, 15, 15, 30),
            Key(1, "b"),
            Expose(1, 18, 0, 40, 12),
        ],
    )
    assert list(drained(events, db)) == [
        Expose(1, 5, 0, 40, 30),
        Key(1, "a"),
        Expose(2, 0, 0, 5, 5),
        Key(1, "b"),
    ]


MINUTES = 60.0


@dataclass
class Alarm:
    """A unit is in trouble. For five minutes nobody needs to hear that again, or of its recovery either."""

    unit: str
    raised_at: float
    times: int = 1

    def check(self, new: Any, asked: Asked) -> Answer:
        if isinstance(new, Recovered):
            # Nobody was told yet: it mended itself, and nobody needs to be.
            return Decision.dont_care if asked.state == "leased" else Decision.ignore_and_delete
        if new.raised_at - self.raised_at >= 5 * MINUTES or asked.state == "leased":
            return Decision.dont_care
        self.times += new.times
        return Decision.ignore


@dataclass
class Recovered:
    """The trouble is over."""

    unit: str


def test_five_minutes_of_no_escalation(db: Any, space: Subspace) -> None:
    clock = Clock()
    alarms = queue_of(
        space,
        MessageType("alarm", Alarm, key=lambda alarm: alarm.unit, sees=OWN_KEY),
        MessageType("recovered", Recovered, key=lambda alarm: alarm.unit, sees=keyed("alarm")),
        clock=clock,
    )

    def alarm(unit: str) -> Decision:
        return alarms.enqueue(db, Alarm(unit, clock.now), delay=5 * MINUTES).decision

    assert alarm("trunk 7") is Decision.queue
    assert alarm("trunk 8") is Decision.queue
    for _ in range(4):
        clock.now += 1 * MINUTES
        assert alarm("trunk 7") is Decision.ignore
    assert alarms.dequeue(db) is None, "five minutes have not passed"
    assert alarms.enqueue(db, Recovered("trunk 8")).decision is Decision.ignore_and_delete
    clock.now += 2 * MINUTES
    assert alarm("trunk 7") is Decision.queue
    assert list(drained(alarms, db)) == [Alarm("trunk 7", 1_000_000.0, times=5)]


@dataclass
class State:
    """What somebody says about somebody; once is enough until it is otherwise."""

    who: str
    is_dead: bool

    def check(self, new: Any, asked: Asked) -> Answer:
        if new.is_dead == self.is_dead:
            return Decision.ignore
        return Decision.dont_care if asked.state == "leased" else Decision.queue_and_delete


def test_george_washington_is_still_dead(db: Any, space: Subspace) -> None:
    news = queue_of(space, MessageType("state", State, key=lambda state: state.who, sees=OWN_KEY))
    for _ in range(100):
        news.enqueue(db, State("George Washington", True))
        news.enqueue(db, State("Ann", False))
    lease = news.leases.lease(db)
    assert lease is not None
    assert news.enqueue(db, State("George Washington", True)).decision is Decision.ignore
    assert news.enqueue(db, State("Ann", True)).decision is Decision.queue_and_delete
    news.leases.ack(db, lease)
    assert list(drained(news, db)) == [State("Ann", True)]


@dataclass
class Total:
    """Something happened, so many times and up to then: whoever reads it wants the bottom line, and no list."""

    event: str
    last_at: float
    times: int = 1

    def check(self, new: Any) -> Answer:
        self.times += new.times
        self.last_at = new.last_at
        return Decision.ignore


def test_the_total_is_reported_once(db: Any, space: Subspace) -> None:
    clock = Clock()
    totals = queue_of(space, MessageType("total", Total, key=lambda total: total.event, sees=OWN_KEY), clock=clock)
    began = clock.now
    for tick in range(12):
        clock.now = began + tick * MINUTES
        totals.enqueue(db, Total("ring without answer", clock.now), delay=10 * MINUTES)
        if tick % 4 == 0:
            totals.enqueue(db, Total("wrong number", clock.now), delay=10 * MINUTES)
        if tick == 10:
            report = [(total.event, total.times) for total in drained(totals, db)]
            assert report == [("ring without answer", 11), ("wrong number", 3)]
    clock.now += 10 * MINUTES
    assert list(drained(totals, db)) == [Total("ring without answer", began + 11 * MINUTES)], "a new one has begun"


def test_a_video_recorder_sends_a_slow_display_few_frames_of_each_camera(db: Any, space: Subspace) -> None:
    frames = queue_of(
        space,
        MessageType(
            "frame", key=lambda frame: frame["camera"], sees=NOTHING, key_limit=Limit(3, when_full="drop newest")
        ),
    )
    shown: dict[str, list[int]] = {"gate": [], "hall": []}
    left_out = {"gate": 0, "hall": 0}
    for tick in range(40):
        for camera, every in (("gate", 1), ("hall", 8)):
            if tick % every == 0:
                left_out[camera] += frames.enqueue(db, {"type": "frame", "camera": camera, "at": tick}).full
        if tick % 3 == 0 and (item := frames.dequeue(db)) is not None:
            shown[item.value["camera"]].append(item.value["at"])
        assert frames.stats(db).types["frame"] <= 6
    assert left_out["hall"] == 0, "a quick camera takes no room from a slow one"
    waiting = [item.value for item in frames.queue.browse(db)]
    for camera, amount in (("gate", 40), ("hall", 5)):
        still = [frame["at"] for frame in waiting if frame["camera"] == camera]
        assert shown[camera] + still == sorted(shown[camera] + still)
        assert len(shown[camera]) + len(still) + left_out[camera] == amount


def test_messages_are_sent_again_after_a_failed_transfer(db: Any, space: Subspace) -> None:
    @dataclass
    class Command:
        number: int

    @dataclass
    class Received:
        by: str
        name: str

    commands = queue_of(
        space,
        MessageType("command", Command, sees=NOTHING),
        MessageType("received", Received, confirms=lambda received: (received.by, received.name)),
    )
    commands.resend.register(db, "recorder 3")
    commands.enqueue_many(db, [Command(n) for n in range(5)])

    def transfer(fails_at: int) -> dict[int, str]:
        """Send what is there without waiting for each confirmation; the line fails at one."""
        arrived = {}
        while (item := commands.resend.fetch(db, "recorder 3")) is not None:
            if item.value.number == fails_at:
                break
            arrived[item.value.number] = item.name
        return arrived

    arrived = transfer(fails_at=3)
    assert list(arrived) == [0, 1, 2]
    for number in (1, 0, 1):  # one confirmation was lost as well; the others changed places, and one came twice
        commands.enqueue(db, Received("recorder 3", arrived[number]))
    commands.resend.reset(db, "recorder 3")
    arrived = transfer(fails_at=-1)
    assert list(arrived) == [2, 3, 4]
    for name in arrived.values():
        commands.enqueue(db, Received("recorder 3", name))
    assert commands.queue.is_empty(db)


@dataclass
class Reading:
    """A sensor's value; what it is compared with, only its own type can tell."""

    sensor: str
    value: float

    def check(self, new: Any) -> Answer:
        return Decision.ignore if (new.sensor, new.value) == (self.sensor, self.value) else Decision.dont_care


def test_a_repeated_reading_is_ignored(db: Any, space: Subspace) -> None:
    readings = queue_of(space, MessageType("reading", Reading, sees=OWN_TYPE))
    said = [("a", 1.0), ("b", 1.0), ("a", 2.0), ("a", 1.0), ("b", 1.0)]
    for sensor, value in said:
        readings.enqueue(db, Reading(sensor, value))
    assert [(reading.sensor, reading.value) for reading in drained(readings, db)] == said[:3]
