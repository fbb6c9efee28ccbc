"""Calls of every verb of every layer, and of commands, on queues that have foreign keys and envelopes."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import CliRunner

import fdbqueue
from fdbqueue import CodecError, FdbQueueError, FormatError, OtherCodec, Queue
from fdbqueue.agents.queues import AgentQueue
from fdbqueue.cli import app, errors, opening
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import is_within
from fdbqueue.layers import Consumer, Monitor, Worker
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.observe import MetricsServer
from fdbqueue.stored.key_table import FAMILIES
from fdbqueue.stored.layout import CATALOGUE, Layout
from fdbqueue.stored.names import queue_text
from fdbqueue.transfer import export_items, import_items
from tests.helpers.forging import Forger, spaces_of
from tests.helpers.verbs import Call, Scene
from tests.helpers.watching_commits import WatchedCommits
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER

MOST_CPU_SECONDS = 1.0
MOST_SECONDS = 250
"""A call that waits for ever is ended then."""
MOST_IDLE_COMMITS = 3
NAMED = re.compile(
    r"([Kk]ey|request|counter|total) b['\"]|item \d+:"
    r"|record of (the stream|batch|job) |record [0-9a-f]{20} "
)
"""How an error says which key, item or record can't be read."""
OTHERWISE = {"Queue.read", "Queue.transact", "Leases.enqueue_rows", "OperationLog.of", "Blobs.write"}
OTHERWISE |= {"Subscriptions.follow", "Consumer.run", "Consumer.drain", "Monitor.run", "Watchdog.run", "Worker.run"}
OTHERWISE |= {"Monitor.sweep"}
"""Verbs that read no key, run a function of the caller's, or run until they are stopped; `further` has some of them."""
ENDS = re.compile(r"\b(clear|rename|remove|unregister|unsubscribe|forget|cancel|purge|release)", re.IGNORECASE)
"""Calls that leave others nothing to do come last."""
REFUSALS = {
    LookupError: re.compile("has no schedule|There is no item"),
    ValueError: re.compile("is not registered with|is ambiguous"),
}
"""Errors of calls that come behind those."""


def _handled(lease: Any) -> None: ...


def _streaming(scene: Scene) -> Stream[Any]:
    queue = Queue(scene.space["streams"], codec="str")
    queue.enqueue_many(scene.db, ["a", "b", "c"])
    stream = Stream(queue, "s")
    stream.claim(scene.db, _terms(1))
    return stream


def _terms(batch: int) -> Terms:
    return Terms(epoch="1f", batch=batch, run="", items=2, size_bytes=1_000)


def _read(stream: Stream[Any], db: Any) -> None:
    batch = stream.sealed(db, 1)
    for split in batch.splits if batch is not None else ():
        for page in stream.read(db, "1f", 1, split):
            for row in page:
                stream.payload(db, 1, row)


def _blob(scene: Scene) -> Any:
    with scene.blobs.write(scene.db, "with a blob") as out:
        out.write(b"data" * 10)
    return out.position


def _write(scene: Scene, db: Any) -> None:
    with scene.blobs.write(db, "another") as out:
        out.write(b"data")


def _follow(scene: Scene, db: Any) -> None:
    for name in (None, "follower"):
        follower = scene.subscriptions.follow(db, name, start="head")
        follower.next_many(timeout=0.0)
        follower.close()


def _agents(scene: Scene) -> Any:
    queue = Queue(scene.space["agents"])
    queue.enqueue_many(scene.db, [b"x", b"y", b"z"])
    return AgentQueue(scene.db, queue, lock=60.0)


async def _take(agents: AgentQueue, db: Any) -> None:
    locked = await agents.take.aio()
    if locked is not None:
        async for _ in agents.data(locked):
            pass
        await agents.confirm.aio(locked.id)


async def _take_late(agents: AgentQueue, db: Any) -> None:
    if (locked := await agents.wait.aio(0.0)) is not None:
        await agents.give_back(locked)


def further(scene: Scene) -> Iterator[tuple[str, Call]]:
    """Yield calls that are in no table of verbs."""
    stream, agents, position = _streaming(scene), _agents(scene), _blob(scene)
    for name in ("look", "record", "release", "drop", "forget", "state", "check"):
        yield f"Stream.{name}", Call(getattr(stream, name))
    yield "Stream.claim", Call(stream.claim, _terms(1))
    yield "Stream.claim next", Call(stream.claim, _terms(2))
    yield "Stream.ack", Call(stream.ack, _terms(1))
    yield "Stream.read", Call(partial(_read, stream))
    yield "Stream.claim on leases", Call(Stream(scene.leases, "t").claim, _terms(1))
    yield "BlobReader.read", Call(lambda db: scene.blobs.read(db, position).read())
    yield "BlobWriter.write", Call(partial(_write, scene))
    yield "AgentQueue.take", Call(partial(_take, agents))
    yield "AgentQueue.wait", Call(partial(_take_late, agents))
    yield "Locks.sweep", Call(agents.locks.sweep)
    yield "Locks.confirm", Call(agents.locks.confirm, 7)
    sources: dict[str, Any] = {
        "leases": scene.leases,
        "sessions": scene.sessions,
        "subscription": scene.subscription,
        "smart": scene.smart,
        "jobs": scene.jobs,
    }
    for name, source in sources.items():
        for on_bad in ("fail", "dead") if name != "smart" else ("fail",):
            consumer: Consumer[Any] = Consumer(source, _handled, concurrency=1, signals=False, on_bad=on_bad)
            yield f"Consumer.drain {name} {on_bad}", Call(consumer.drain)
    yield "Follower.next_many", Call(partial(_follow, scene))
    yield "Worker.drain", Call(Worker(scene.tasks, signals=False).drain)
    yield "Monitor.sweep", Call(Monitor(scene.deadlines, _handled).sweep)
    yield "DeadLetters.browse null", Call(scene.leases.dead.browse, on_bad="null")
    yield "Sessions.dead null", Call(scene.sessions.dead, "ann", on_bad="null")
    for name in ("queue", "sessions", "smart", "tasks", "groups", "streams", "agents", "subscriptions"):
        yield f"check {name}", Call(fdbqueue.check, Queue(scene.space[name]))
    yield "MetricsServer.text", Call(MetricsServer("127.0.0.1:0").text)


def carried(scene: Scene, folder: Path) -> Iterator[tuple[str, Call]]:
    """Yield the calls of transfer."""
    path = folder / f"{scene.space.key().hex()}.jsonl"

    def export(db: Any) -> None:
        export_items(db, scene.queue, path, on_bad="skip")
        import_items(db, Queue(scene.space["imported"], codec="str"), path)

    yield "export and import", Call(export)


COMMANDS = (
    "enqueue QUEUE x --codec str",
    "dequeue QUEUE",
    "lease QUEUE",
    "lease sessions --sessions",
    "lease subscriptions --subscription all",
    "peek QUEUE",
    "browse QUEUE",
    "browse QUEUE --state dead",
    "get QUEUE 7:72",
    "cancel QUEUE 7:72 --yes",
    "cancel QUEUE --all --yes",
    "update QUEUE 7:72 --headers {}",
    "reschedule QUEUE --all --yes --delay 5",
    "dead QUEUE",
    "dead QUEUE --by-error",
    "redrive QUEUE --all",
    "purge QUEUE --all --yes",
    "bury QUEUE 7:72",
    "queues --within SPACE",
    "inspect QUEUE",
    "stats QUEUE",
    "register QUEUE --codec str",
    "pause QUEUE",
    "resume QUEUE",
    "quota QUEUE",
    "sessions sessions",
    "sessions sessions --items ann",
    "sessions sessions --purge ann --yes",
    "sessions sessions --redrive ann",
    "sessions sessions --remove ann --yes",
    "subscriptions subscriptions",
    "subscribe subscriptions some",
    "unsubscribe subscriptions some",
    "groups groups",
    "groups groups import --cancel",
    "streams streams",
    "schedules tasks",
    "schedules tasks --pause note",
    "schedules tasks --remove note",
    "sweep QUEUE",
    "sweep agents",
    "troubles --within SPACE",
    "check QUEUE",
    "check QUEUE --remove-foreign",
    "top QUEUE --count 1 --interval 0.1",
    "clear QUEUE --yes",
)
QUEUES = ("queue", "sessions", "smart", "tasks", "groups", "streams", "agents", "subscriptions", "jobs", "results")


@cache
def _commands() -> Any:
    """Build the commands once, which takes longer than most of them."""
    return typer.main.get_command(app)


class CommandFailed(Exception):
    """A command ended by an error that is not the library's."""


@dataclass
class Shell:
    """Runs commands in this process, on the test's own database."""

    patch: pytest.MonkeyPatch
    told: list[BaseException] = field(default_factory=list)
    """The errors of the command that ran last."""

    def on(self, db: Any) -> None:
        """Let commands open a database, and note the errors that they tell of."""
        self.patch.setattr(opening, "open", lambda url: db)
        self.patch.setattr(errors, "told", self._noted)

    def _noted(self, error: BaseException) -> str:
        self.told.append(error)
        return str(error)

    def calls(self, space: Subspace, dice: random.Random) -> Iterator[tuple[str, Call]]:
        """Yield the calls of commands."""
        for line in COMMANDS:
            queue = dice.choice(QUEUES)
            words = [self._word(word, space, queue) for word in line.split()]
            yield f"`{line}` on {queue}", Call(partial(self._run, words))

    def _word(self, word: str, space: Subspace, queue: str) -> str:
        if word == "SPACE":
            return queue_text(space.key())
        found = queue if word == "QUEUE" else word
        return queue_text(space[found].key()) if found in QUEUES else word

    def _run(self, words: list[str], _: Any) -> None:
        self.told.clear()
        result = CliRunner().invoke(_commands(), words, env={"FDBQUEUE_URL": "fdb:"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        for error in self.told:
            raise error
        if result.exit_code not in errors.CODES:
            raise CommandFailed(f"{words} ended with {result.exit_code}: {result.stderr}")


@dataclass(frozen=True)
class Failure:
    """A call that did not what it should."""

    call: str
    """The verb or the command, and its form."""
    seed: str
    told: str

    def __str__(self) -> str:
        return f"{self.call} in round {self.seed!r}: {self.told}"


@dataclass
class Played:
    """What was done."""

    keys: int = 0
    envelopes: int = 0
    """How many of the keys were items, whose bytes were changed."""
    calls: int = 0
    errors: int = 0
    """How many calls ended with an error of the library."""
    failures: list[Failure] = field(default_factory=list)


class Round:
    """A scene with all verbs, which is tampered with, and then each verb is called.

    Args:
        db: the database.
        space: where the scene is.
        seed: draws all.
        keys: how many keys are written.
        planted: the keys of an earlier round; None: they are drawn.
    """

    def __init__(
        self,
        db: Any,
        space: Subspace,
        seed: str,
        *,
        keys: int,
        shell: Shell,
        folder: Path,
        planted: dict[bytes, bytes] | None = None,
    ) -> None:
        self.db = WatchedCommits(db)
        self.space = space
        self.seed = seed
        self.planted = planted
        self._raw = db
        self._keys = keys
        self._shell = shell
        self._folder = folder
        self._order = random.Random(seed)

    def play(self, played: Played) -> None:
        """Write the keys, and make all calls in an order of the seed's."""
        self._shell.on(self.db)
        self._clear()
        calls = list(self._calls(Scene(self.db, self.space)))
        if self.planted is None:
            self.planted = self._drawn(played)
        self._plant(self.planted)
        played.keys += len(self.planted)
        self._order.shuffle(calls)
        calls.sort(key=lambda call: bool(ENDS.search(call[0])))
        for name, call in calls:
            self._call(name, call, played)
        self._clear()

    def _clear(self) -> None:
        self._raw.clear_range_startswith(self.space.key())
        self._raw.clear_range_startswith(CATALOGUE + self.space.key())

    def _calls(self, scene: Scene) -> Iterator[tuple[str, Call]]:
        for name, make in (*EITHER.items(), *DATABASE_ONLY.items()):
            if name not in OTHERWISE:
                call = make(scene)
                if "timeout" in call.terms:
                    call.terms["timeout"] = 0.0
                yield name, call
        yield from further(scene)
        yield from carried(scene, self._folder)
        yield from self._shell.calls(self.space, self._order)

    def _drawn(self, played: Played) -> dict[bytes, bytes]:
        """Draw keys, and changes of envelopes."""
        rows = [(row.key, row.value) for row in self._raw.get_range_startswith(self.space.key())]
        forger = Forger(self.seed)
        layouts = spaces_of((key for key, _ in rows), self.space)
        found: dict[bytes, bytes] = {}
        while len(found) < self._keys:
            layout = forger.dice.choice(layouts)
            own = [row for row in rows if is_within(row[0], layout.prefix)]
            number = min(forger.dice.choice((1, 5, 50, 300)), self._keys - len(found))
            drawn = forger.dice.random()
            if drawn < 0.75:
                keys = forger.keys(layout, number)
            elif drawn < 0.9:
                keys = forger.mutated(own, layout, number)
            elif drawn < 0.93:
                keys = forger.item_keys(layout, min(number, 5))
            else:
                items = [row for row in own if _is_item(layout, row[0])]
                changed = {key: forger.envelope(value) for key, value in forger.dice.sample(items, min(len(items), 2))}
                found |= changed
                played.envelopes += len(changed)
                continue
            found |= {key: forger.value() for key in keys if key.startswith(layout.prefix)}
        return found

    def _plant(self, found: dict[bytes, bytes]) -> None:
        rows = list(found.items())
        for start in range(0, len(rows), 1_000):
            tr = self._raw.create_transaction()
            for key, value in rows[start : start + 1_000]:
                tr.set(key, value)
            tr.commit().wait()

    def _call(self, name: str, call: Call, played: Played) -> None:
        form = self._order.choice(call.forms())

        def failed(told: str) -> None:
            played.failures.append(Failure(f"{name}{'.aio' if form == call.awaited else ''}", self.seed, told))

        self.db.begin()
        played.calls += 1
        began = time.process_time()
        try:
            with _ending():
                form(self.db)
        except (FormatError, CodecError) as error:
            played.errors += 1
            if not isinstance(error, OtherCodec) and not NAMED.search(str(error)):
                failed(f"no key is named: {type(error).__name__}: {error}")
        except FdbQueueError:
            played.errors += 1
        except Exception as error:  # noqa: BLE001  the test is about all of them
            if not (type(error) in REFUSALS and REFUSALS[type(error)].search(str(error))):
                failed(_told(error))
        took = time.process_time() - began
        if took > MOST_CPU_SECONDS:
            failed(f"took {took:.1f} s of CPU")
        if self.db.idle > MOST_IDLE_COMMITS:
            failed(f"{self.db.idle} of {self.db.commits} commits changed nothing")


def culprits(made: Callable[[dict[bytes, bytes]], Round], failure: Failure, planted: dict[bytes, bytes]) -> list[bytes]:
    """Return the fewest of the planted keys with which a call fails in the same way, found by halves.

    Args:
        made: makes a round with some of the keys.
    """

    def fails(keys: list[bytes]) -> bool:
        played = Played()
        made({key: planted[key] for key in keys}).play(played)
        return any(one.call == failure.call for one in played.failures)

    keys = list(planted)
    while len(keys) > 1:
        half = len(keys) // 2
        found = next((some for some in (keys[:half], keys[half:]) if fails(some)), None)
        if found is None:
            break
        keys = found
    return keys


def _is_item(layout: Layout, key: bytes) -> bool:
    families = ("leased", "delayed", "dead", "claims", "items")
    return layout.begin <= key < layout.end or any(
        is_within(key, layout.prefix + FAMILIES[name].packed) for name in families
    )


def _told(error: BaseException) -> str:
    """Return an error, and the last places of its traceback."""
    trace, where = error.__traceback__, []
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        where.append(f"{path.parent.name}/{path.name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} [{' < '.join(reversed(where[-7:]))}]"


@contextmanager
def _ending() -> Iterator[None]:
    """End a call that waits for ever."""

    def end(*_: object) -> None:
        raise TimeoutError(f"It did not end in {MOST_SECONDS} s.")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
