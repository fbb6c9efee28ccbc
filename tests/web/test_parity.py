"""All that the page does, a command does too: each page has its command, and each button does what a command does."""

from __future__ import annotations

import time
from typing import Any

import pytest
from typer.testing import CliRunner

from fdbqueue import Queue
from fdbqueue.cli import app
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases, Sessions, Tasks
from fdbqueue.layers.schedules import Schedules
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.stored.layout import name_of
from fdbqueue.stored.names import name_text
from fdbqueue.web import AdminApp
from fdbqueue.web.changes import CHANGES
from tests.web.conftest import Browser

pytestmark = pytest.mark.engines("file")
COMMANDS: dict[str, str] = {
    "redrive": "redrive QUEUE DEAD",
    "purge": "purge QUEUE DEAD --yes",
    "cancel": "cancel QUEUE FIRST",
    "reschedule": "reschedule QUEUE FIRST --delay 60",
    "bury": "bury QUEUE FIRST --error broken",
    "pause": "pause QUEUE --reason stocktaking",
    "resume": "resume QUEUE",
    "quota": "quota QUEUE --items 9",
    "sweep": "watchdog QUEUE --once",
    "session-pause": "sessions QUEUE --pause Bob",
    "session-resume": "sessions QUEUE --resume Bob",
    "session-try": "reschedule QUEUE OF_BOB --session Bob --delay 0",
    "session-skip": "sessions QUEUE --skip Ann",
    "session-redrive": "sessions QUEUE --redrive Ann",
    "session-purge": "sessions QUEUE --purge Ann --yes",
    "session-remove": "sessions QUEUE --remove Bob",
    "session-cancel": "cancel QUEUE OF_BOB --session Bob",
    "schedule-pause": "schedules QUEUE --pause daily",
    "schedule-resume": "schedules QUEUE --resume daily",
}
"""What a shell does in place of each button."""
FORMS: dict[str, dict[str, str]] = {
    "redrive": {"state": "dead", "position": "DEAD"},
    "purge": {"state": "dead", "position": "DEAD"},
    "cancel": {"state": "available", "position": "FIRST"},
    "reschedule": {"state": "available", "position": "FIRST", "delay": "60"},
    "bury": {"state": "available", "position": "FIRST", "why": "broken"},
    "pause": {"reason": "stocktaking"},
    "quota": {"items": "9"},
    **{name: {"session": "Bob"} for name in ("session-pause", "session-resume", "session-try", "session-remove")},
    "session-cancel": {"session": "Bob", "position": "OF_BOB"},
    **{name: {"session": "Ann"} for name in ("session-skip", "session-redrive")},
    "session-purge": {"session": "Ann"},
    **{name: {"schedule": "daily"} for name in ("schedule-pause", "schedule-resume")},
}
LOOKS: dict[str, tuple[str, ...]] = {
    "": ("queues",),
    "queue": ("inspect QUEUE",),
    "items": ("browse QUEUE --state dead --records",),
    "item": ("get QUEUE FIRST", "get QUEUE OF_BOB --session Bob"),
    "dead": ("dead QUEUE --by-error",),
    "sessions": ("sessions QUEUE",),
    "session": ("sessions QUEUE --items Ann",),
    "parts": ("subscriptions QUEUE", "streams STREAMED", "groups QUEUE", "schedules QUEUE"),
}
"""What a shell shows in place of each page."""


class Own:
    """A queue of each kind in one, always the same."""

    def __init__(self, db: Any, space: Subspace, *, sessions: bool = True) -> None:
        self.db = db
        self.queue: Queue[Any] = Queue(space, codec="json")
        self.leases = Leases(self.queue, max_attempts=1)
        self.sessions = Sessions(self.queue, max_attempts=1, on_dead="block")
        self.name = name_text(name_of(space.key()))
        self.leases.enqueue_many(db, [1, 2, 3])
        lease = self.leases.lease(db)
        assert lease is not None
        self.leases.nack(db, lease, error="no such sku")
        self.places = {
            "QUEUE": self.name,
            "DEAD": lease.position.text,
            "FIRST": next(iter(self.queue.browse(db))).position.text,
        }
        if sessions:
            self._begin_sessions()

    def _begin_sessions(self) -> None:
        db = self.db
        for session in ("Ann", "Bob"):
            self.sessions.enqueue_many(db, [4, 5], session=session)
        turn = self.sessions.lease(db)
        assert turn is not None
        self.sessions.nack(db, turn, error="no such bank")
        self.places["OF_BOB"] = self.sessions.scheduled(db, "Bob")[0].position.text

    def state(self) -> dict[str, Any]:
        """Return all that buttons change."""
        pause, quota = self.queue.paused(self.db), self.queue.quota(self.db)
        return {
            "stats": self.queue.stats(self.db),
            "dead": [(letter.value, letter.error) for letter in self.leases.dead.browse(self.db)],
            "pause": pause and pause.reason,
            "quota": quota and quota.items,
            "sessions": self.sessions.stats(self.db),
            "infos": [
                (one.session, one.status, one.items, one.delayed, one.dead, one.reason, one.closing)
                for one in self.sessions.list(self.db)
            ],
            "schedules": [(one.name, one.status) for one in Schedules(self.queue, time.time).list(self.db)],
        }


def daily() -> None:
    """Do nothing."""


def prepare(change: str, own: Own) -> None:
    """Make the queue such that the change does something."""
    if change == "resume":
        own.queue.pause(own.db)
    if change == "sweep":
        assert Leases(own.queue, clock=lambda: time.time() - 3_600).lease(own.db, duration=5) is not None
    if change == "session-resume":
        own.sessions.pause(own.db, "Bob")
    if change == "session-try":
        own.queue.register(own.db, max_attempts=9)
        again = Sessions(Queue(own.queue.layout.space, codec="json"), max_attempts=9)
        turn = again.lease(own.db)
        assert turn is not None
        again.nack(own.db, turn, delay=3_600)
    if change.startswith("schedule-"):
        tasks = Tasks(own.leases)
        tasks.periodic("0 8 * * *", name="daily")(tasks.task(name="daily")(daily))
        tasks.run_due(own.db)
    if change == "schedule-resume":
        Schedules(own.queue, time.time).pause(own.db, "daily")


def run(url: str, command: str, places: dict[str, str]) -> Any:
    arguments = [places.get(word, word) for word in command.split()]
    return CliRunner().invoke(app, arguments, env={"FDBQUEUE_URL": url})


def test_each_button_has_a_command() -> None:
    assert set(COMMANDS) == set(CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_button_and_its_command_do_the_same(db: Any, url: str, space: Subspace, change: str) -> None:
    by_page, by_shell = (Own(db, space[name], sessions=change != "quota") for name in ("page", "shell"))
    for one in (by_page, by_shell):
        prepare(change, one)
    before = by_shell.state()
    assert by_page.state() == before

    pages = AdminApp(db, allow_changes=True, within=space)
    try:
        form = {name: by_page.places.get(text, text) for name, text in FORMS.get(change, {}).items()}
        Browser(pages).change(change, by_page.name, **form)
    finally:
        pages.close()
    ran = run(url, COMMANDS[change], by_shell.places)

    assert ran.exit_code == 0, ran.stderr
    assert by_page.state() == by_shell.state() != before


def test_each_page_has_a_command(db: Any, url: str, space: Subspace) -> None:
    pages = AdminApp(db, within=space)
    pages.close()
    routes = {route.path.strip("/") for route in pages.routes}
    assert routes - {"preview", "apply", "login", "static/{name}"} == set(LOOKS)
    one = Own(db, space["one"])
    streamed = Queue(space["streamed"], codec="json")
    streamed.enqueue(db, 1)
    Stream(streamed, "spark").claim(db, Terms(epoch="e", batch=1, run="r", items=1, size_bytes=1_000))
    one.places["STREAMED"] = name_text(name_of(streamed.layout.prefix))
    for command in (command for commands in LOOKS.values() for command in commands):
        ran = run(url, command, one.places)
        empty = command.split()[0] in ("subscriptions", "groups", "schedules")
        assert ran.exit_code == int(empty), (command, ran.stderr, ran.stdout)
        assert bool(ran.stdout) != empty
