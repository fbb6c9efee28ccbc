"""No key that the library writes is foreign, whatever calls are made of it, in any order."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import fdbqueue
from fdbqueue import ChecksBypassed, FdbQueueError, OtherCodec, Position, Queue
from fdbqueue.engine import Subspace
from fdbqueue.engine.keys import is_within
from fdbqueue.errors import StreamError, TransferError
from fdbqueue.layers import Leases, Sessions
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from fdbqueue.layers.streams import Stream, Terms
from fdbqueue.layers.subscriptions.records import DISPATCHER
from fdbqueue.spark.partition_log import JobKeys
from fdbqueue.spark.sink_batches import SinkKeys
from fdbqueue.stored.key_table import is_own
from fdbqueue.stored.layout import CATALOGUE, Layout
from fdbqueue.stored.settings import OwnItems, RenamePart, own_items, rename_parts
from fdbqueue.transfer import copy_queue
from fdbqueue.verbs import renaming
from tests.helpers.nightly import at_night
from tests.helpers.verbs import Scene
from tests.layers.together.test_once_in_transactions import CALLS

CALLS_AT_ONCE = 40


@pytest.mark.parametrize("seed", [*range(4), *at_night(*range(100, 150))])
def test_no_call_of_any_layer_writes_a_foreign_key(db: Any, space: Subspace, seed: int) -> None:
    dice = random.Random(seed)
    scene = Scene(db, space)
    for call in [CALLS[name](scene) for name in dice.sample(sorted(CALLS), CALLS_AT_ONCE)]:
        with suppress(FdbQueueError):  # another call has taken the item
            fdbqueue.transactional(lambda tr, call=call: call(tr))(db)
    queues = [row.key[len(CATALOGUE) :] for row in db.get_range_startswith(CATALOGUE)]
    for prefix in (prefix for prefix in queues if is_within(prefix, space.key())):
        report = fdbqueue.check(db, Queue(Subspace(rawPrefix=prefix)), remove_foreign=True)
        assert (report.foreign, report.removed) == ((), 0)


def test_keys_that_few_programs_write_are_own(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    layout, position = queue.layout, Position(7, b"r\x00", rank=3)
    sessions = Sessions(queue)
    sessions.enqueue(db, "x", session=("a", 7, None, 1.5))
    job, sink = JobKeys(layout, "load"), SinkKeys(layout, "s")
    logs = sink.logs("query", 3)
    for name in (7, None, ("a", 1.5), b"x"):
        TokenBucket(queue, name, count=1).take(db)
    keys = [
        *(job.record, job.owner(0), job.count(1), job.log_entry(2, 300), job.aside(b"s", b"t", "rows", 0, 1)),
        *(sink.record, sink.part("query", 3, b"t", 0, 1), logs.owner(0), logs.count(1), logs.log_entry(2, 300)),
        *(
            layout.pointers.pack((DISPATCHER,)),
            layout.chunk_key(position, 0),
            layout.blob_key(b"id", 3),
            layout.type_key,
            layout.subscribed_key,
        ),
        *(row.key for row in db.get_range_startswith(layout.prefix)),
    ]
    foreign = [key for key in keys if not is_own(key[len(layout.prefix) :])]
    assert len(keys) > 20
    assert foreign == []


# A layer that the library has never heard of adds what it has in one place, and the verbs of the queue obey.


def dreams(layout: Layout) -> Subspace:
    return layout.space["dream"]


def further_head(layout: Layout) -> tuple[Layout]:
    return (Layout(layout.space["dreamt line"]),)


async def refuse_dreams(tr: Any, layout: Layout, missing: list[Position], verb: str) -> None:
    raise ValueError(f"{missing[0].text} is a dream: Dreams.{verb}.")


@pytest.fixture
def dreaming(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> Queue[str]:
    """A queue with an item of an imaginary layer apart from its plain one."""
    monkeypatch.setattr(own_items, "parts", dict(own_items.parts))
    queue = Queue(space["dreaming"], codec="str")
    queue.enqueue(db, "x")
    db[dreams(queue.layout).pack((1,))] = b"y"
    assert not fdbqueue.check(db, queue).ok
    own_items.add(
        "dreams",
        OwnItems(
            what="dreams",
            items=dreams,
            records=dreams,
            seen="Close your eyes.",
            ends="Wake up.",
            refuses=refuse_dreams,
            heads=further_head,
            codec_key=lambda layout: dreams(layout).pack((0,)),
        ),
    )
    return queue


def copied(db: Any, queue: Queue[str]) -> None:
    with fdbqueue.open("memory:") as target:
        copy_queue(db, target, queue)


PLACE = Position(7, b"random", rank=3)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "rename": (
        lambda db, queue: fdbqueue.rename(db, queue.layout.space, queue.layout.space.key() + b"!"),
        TransferError,
        "has dreams. Nothing was changed. Wake up.",
    ),
    "copy": (copied, StreamError, "has items in dreams, and a copy does not see these. Close your eyes."),
    "columns": (
        lambda db, queue: queue.to_arrow(db),
        StreamError,
        "has items in dreams, and to_arrow does not see these.",
    ),
    "stream": (
        lambda db, queue: Stream(queue, "s").claim(db, Terms(epoch="e", batch=1, run="", items=1, size_bytes=1_000)),
        StreamError,
        "has items in dreams, and a stream",
    ),
    "quota": (lambda db, queue: queue.set_quota(db, 5), ChecksBypassed, "quota"),
    "codec": (lambda db, queue: Queue(queue.layout.space).register(db), OtherCodec, "have the codec 'str'"),
    "cancel": (lambda db, queue: queue.cancel(db, PLACE), ValueError, "3:7:72616e646f6d is a dream: Dreams.cancel."),
    "purge": (
        lambda db, queue: Leases(queue).dead.purge(db, PLACE),
        ValueError,
        "3:7:72616e646f6d is a dream: Dreams.purge.",
    ),
}


@pytest.mark.parametrize("verb", REFUSED)
def test_verbs_refuse_what_an_imaginary_layer_keeps_apart(db: Any, dreaming: Queue[str], verb: str) -> None:
    dreaming.dequeue(db)  # its own item alone is none that could be refused
    call, error, told = REFUSED[verb]
    with pytest.raises(error, match=re.escape(told)):
        call(db, dreaming)
    assert fdbqueue.check(db, dreaming).ok
    db.clear_range_startswith(dreams(dreaming.layout).key())
    if verb not in ("rename", "cancel", "purge"):  # a rename waits, and the others name no plain item
        call(db, dreaming)


def test_a_pause_closes_the_heads_of_an_imaginary_layer(db: Any, dreaming: Queue[str]) -> None:
    (head,) = further_head(dreaming.layout)
    dreaming.pause(db)
    assert db[head.paused_key] is not None
    assert fdbqueue.check(db, dreaming).ok
    dreaming.resume(db)
    assert db[head.paused_key] is None


def test_a_damaged_codec_of_an_imaginary_layer_goes_with_another_one(db: Any, dreaming: Queue[str]) -> None:
    keys = [dreams(dreaming.layout).pack((number,)) for number in (0, 1)]
    db[keys[0]] = b"\xff"
    Queue(dreaming.layout.space, codec="json").register(db, on_codec="replace")
    assert [db[key] is not None for key in keys] == [False, True]


def apart(name: str) -> Callable[[Layout], Subspace]:
    return lambda layout: layout.space[name]


def test_a_rename_obeys_what_an_imaginary_layer_says(db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(seconds: float) -> None: ...

    monkeypatch.setattr(renaming, "pause", at_once)
    monkeypatch.setattr(rename_parts, "parts", dict(rename_parts.parts))
    old, new = (Queue(space[name], codec="str").layout for name in ("old", "new"))
    Queue(space["old"], codec="str").enqueue(db, "x")
    stays, waits, names = map(apart, ("stays", "waits", "names"))
    for keys in stays, waits, names:
        db[keys(old).pack((1,))] = old.prefix

    def moved(key: bytes, value: bytes, old: Layout, new: Layout) -> bytes:
        return new.prefix if key == names(old).pack((1,)) else value

    rename_parts.add("dreams", RenamePart("a nap", stays, "Wake up {queue}.", (waits,), moved))
    with pytest.raises(TransferError, match=re.escape(f"has a nap. Nothing was changed. Wake up {old.describe()}.")):
        fdbqueue.rename(db, space["old"], space["new"])
    assert [db[keys(old).pack((1,))] is not None for keys in (stays, waits, names)] == [True] * 3
    db.clear_range_startswith(stays(old).key())
    fdbqueue.rename(db, space["old"], space["new"])
    assert db[names(new).pack((1,))] == new.prefix
    assert [db[keys(of).pack((1,))] is not None for keys in (waits, names) for of in (old, new)] == [False] * 3 + [True]
