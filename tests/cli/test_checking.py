"""The check looks at what every layer keeps, and says what it has looked at."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.cli import errors
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.smart.smart import MESSAGES
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.spark.partition_log import JOBS
from tests.cli.conftest import Run, beside
from tests.cli.test_leasing import lines
from tests.cli.test_terminal import on_terminal
from tests.helpers.smart import Progress, smart_queue
from tests.helpers.staging import wait_until

pytestmark = pytest.mark.engines("file", "cluster")


@pytest.fixture
def queue(space: Subspace) -> fdbqueue.Queue:
    return fdbqueue.Queue(space, codec="json")


@pytest.fixture
def smart(db: Any, space: Subspace) -> SmartQueue:
    """Return a smart queue with a leased, a delayed, an available and a dead item."""
    smart = smart_queue(space)
    for n in range(4):
        smart.enqueue(db, Progress(f"file {n}", 1))
    leases = Leases(smart.queue, max_attempts=1)
    leases.lease(db)
    dies, waits = leases.lease_many(db, limit=2)
    leases.snooze(db, waits, delay=600)
    leases.nack(db, dies)
    return smart


def problems(run: Run, name: str) -> str:
    """Return what the check has found, one a line."""
    found = run("check", name)
    [told] = lines(found.stdout)
    assert (found.exit_code, told["ok"]) == ((errors.EMPTY, False) if told["problems"] else (0, True))
    return "\n".join(told["problems"])


def test_a_counter_that_cant_be_read_is_mended_by_an_export_a_clear_and_an_import(
    run: Run, db: Any, name: str, queue: fdbqueue.Queue, tmp_path: Path
) -> None:
    first = queue.enqueue(db, 1)
    db[queue.layout.count_key("dead")] = b"xx"
    assert "it has 2 bytes and not 8" in problems(run, name)

    for words in ("export {} --to {}", "clear {} --yes", "import {} --from {}"):
        told = run(
            *(word.format(name if at == 1 else tmp_path / "items.jsonl") for at, word in enumerate(words.split()))
        )
        assert told.exit_code == 0, told.stderr

    assert problems(run, name) == ""
    assert [item.position for item in queue.browse(db)] == [first]


@pytest.mark.parametrize("command", ["stats", "inspect"])
def test_a_damaged_counter_is_named_with_its_remedy_beside_other_troubles(
    run: Run, db: Any, name: str, queue: fdbqueue.Queue, command: str
) -> None:
    queue.enqueue(db, 1)
    queue.pause(db, reason="a test")
    db[queue.layout.count_key("dead")] = b"xx"

    failed = run(command, name)

    assert failed.exit_code == errors.VALUE
    assert "it has 2 bytes and not 8" in failed.stderr
    assert "call `fdbqueue export`, `fdbqueue clear` and `fdbqueue import`" in failed.stderr
    assert "fdbqueue resume" in failed.stderr


def test_an_enqueue_into_a_queue_with_a_quota_names_the_remedy_of_a_damaged_counter(
    run: Run, db: Any, name: str, queue: fdbqueue.Queue
) -> None:
    queue.set_quota(db, 10)
    db[queue.layout.count_key("dead")] = b"xx"

    with pytest.raises(fdbqueue.FormatError, match=r"Queue\.clear and fdbqueue\.transfer\.import_items"):
        queue.enqueue(db, 1)
    assert "call `fdbqueue export`, `fdbqueue clear`" in run("enqueue", name, "1").stderr


def test_waiting_calls_and_grants_are_no_problem(run: Run, db: Any, name: str, queue: fdbqueue.Queue) -> None:
    staged = StagedQueue(queue)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(staged.dequeue, db, timeout=60)
        wait_until(lambda: staged.stats(db).requests)
        assert problems(run, name) == ""
        queue.enqueue(db, 1)
        assert waiting.result(60) is not None
    assert problems(run, name) == ""


@pytest.mark.parametrize("kind", ["requests", "grants"])
def test_an_unreadable_request_or_grant_is_reported(
    run: Run, db: Any, name: str, queue: fdbqueue.Queue, kind: str
) -> None:
    key = {
        "requests": queue.layout.requests.key() + b"\x33" + bytes(12),
        "grants": queue.layout.grants.pack((b"somebody",)),
    }[kind]
    db[key] = b"\xf0from the future"

    assert kind[:-1] in problems(run, name)


def test_a_smart_queue_is_checked_without_its_types(run: Run, db: Any, name: str, smart: SmartQueue) -> None:
    smart.resend.register(db, "B")
    smart.enqueue(db, Progress("sent", 1))
    assert problems(run, name) == ""
    layout = smart.queue.layout

    stray_keys = [
        space.pack((7, b"random")) for space in (layout.deadlines["near"][7], layout.copies[1], layout.unsent[1])
    ]
    stray_keys += [layout.smart.pack(("progress", b"x", 7, b"random")), layout.smart.key() + b"\x34no tuple"]
    for stray in stray_keys:
        db[stray] = b""
    told = problems(run, name)
    assert [told.count(f"of a {kind} belongs to no item") for kind in ("deadline", "copy", "unsent")] == [1, 1, 1]
    assert told.count("of a smart index belongs to no item") == 2
    assert "no tuple" in told

    for stray in stray_keys:
        del db[stray]
    entries = [row.key for row in db.get_range_startswith(layout.smart.key())]
    for entry in entries:
        del db[entry]
    assert problems(run, name).count("The smart index has no ") == len(entries) == 4


def test_an_unreadable_item_of_a_smart_queue_is_reported_and_the_rest_checked(
    run: Run, db: Any, name: str, smart: SmartQueue
) -> None:
    db[smart.queue.layout.item_key(fdbqueue.Position(0, b"future"))] = b"\xf0from the future"
    db[smart.queue.layout.deadlines["near"][7].pack((7, b"random"))] = b""

    told = problems(run, name)
    assert "newer version" in told
    assert told.count("of a deadline belongs to no item") == told.count("belongs to no item") == 1


def test_the_check_names_the_checked_and_the_unchecked_parts(
    run: Run, db: Any, name: str, queue: fdbqueue.Queue, smart: SmartQueue
) -> None:
    other = fdbqueue.Queue(tuple(json.loads(beside(name))))
    other.register(db)
    [plain] = lines(run("check", beside(name)).stdout)
    assert {"items", "counters", "timers", "requests", "grants", "subscriptions"} <= {*plain["looked_at"]}
    assert plain["not_looked_at"] == []

    assert lines(run("check", name).stdout)[0]["not_looked_at"] == [MESSAGES]
    db[other.layout.jobs.pack(("job",))] = b"a record"
    [loaded] = lines(run("check", beside(name)).stdout)
    assert loaded["not_looked_at"] == [JOBS]


@pytest.mark.slow
@pytest.mark.engines("file")
def test_a_terminal_shows_the_checked_parts_too(url: str, db: Any, name: str, smart: SmartQueue) -> None:
    code, shown = on_terminal("check", name, url=url)

    assert code == 0
    for told in ("4 items, all well", "Looked at: items,", "requests, grants", f"Not looked at: {MESSAGES}."):
        assert told in " ".join(shown.split())


def test_what_looked_wrong_in_a_changing_queue_is_no_problem(
    run: Run, name: str, queue: fdbqueue.Queue, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(db, 1)
    report = fdbqueue.CheckReport(1, (), counted=False, unsure=("It moved.",))
    monkeypatch.setattr(fdbqueue, "check", lambda db, queue, remove_foreign: report)

    found = run("check", name)
    [told] = lines(found.stdout)
    assert (found.exit_code, told["ok"], told["unsure"], told["counted"]) == (0, True, ["It moved."], False)


def test_foreign_keys_are_named_and_removed(run: Run, db: Any, name: str, queue: fdbqueue.Queue) -> None:
    first = queue.enqueue(db, 1)
    foreign = [
        queue.layout.prefix + b"\x15\x01\x02text\x00",  # among the items, without a position
        queue.layout.timers.pack((1, "text", b"r", "lease")),
        queue.layout.dead.prefix + b"\x15",
    ]
    for key in foreign:
        db[key] = b"x"
    [told] = lines(run("check", name).stdout)
    assert sorted(told["foreign"]) == sorted(key.hex() for key in foreign)
    assert told["removed"] == 0
    for command in ("browse", "dead"):
        failed = run(command, name)
        assert failed.exit_code == errors.VALUE
        assert "fdbqueue check" in failed.stderr
        assert "--remove-foreign" in failed.stderr

    mended = run("check", name, "--remove-foreign")

    assert mended.exit_code == 0, mended.stdout
    [told] = lines(mended.stdout)
    assert (told["ok"], told["foreign"], told["removed"]) == (True, [], 3)
    assert problems(run, name) == ""
    assert [item.position for item in queue.browse(db)] == [first]
    assert [db[key] for key in foreign] == [None] * 3


def test_a_terminal_tells_how_many_foreign_keys_are_removed(
    url: str, db: Any, name: str, queue: fdbqueue.Queue
) -> None:
    queue.enqueue(db, 1)
    db[queue.layout.timers.pack(("foreign",))] = b""
    status, text = on_terminal("check", name, "--remove-foreign", url=url)
    assert "1 foreign key removed." in text
    assert "all well" in text
    assert status == 0


def test_items_that_cant_be_read_are_buried_and_purged(run: Run, db: Any, name: str, queue: fdbqueue.Queue) -> None:
    bad = [queue.enqueue(db, number) for number in range(3)]
    good = queue.enqueue(db, 4)
    for position, stored in zip(bad, (b"", b"\x20newer", b"\x10{"), strict=True):
        db[queue.layout.item_key(position)] = stored
    assert run("dequeue", name).exit_code == errors.VALUE
    assert run("bury", name, *(position.text for position in bad)).exit_code == 0
    first = run("purge", name, bad[0].text, "--yes")
    assert first.exit_code == 0, first.stderr
    assert Leases(queue).stats(db).dead == 2

    rest = run("purge", name, "--all", "--yes")

    assert rest.exit_code == 0, rest.stderr
    assert Leases(queue).stats(db).dead == 0
    assert problems(run, name) == ""
    assert [item.position for item in queue.browse(db)] == [good]
