"""Errors in other processes: each one is pickled and copied as it is, with its attributes and notes."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import fdbqueue
from fdbqueue import BulkReport, FDBError, FdbQueueError, LeaseLost, Position, Queue, Quota
from fdbqueue.layers import Leases, RetryIn, Snooze

HERE = Position(7, b"random")
MADE: dict[str, Callable[[], BaseException]] = {
    "AgentError": lambda: fdbqueue.errors.AgentError("No answer.", step="data", received="no", in_doubt=True),
    "BulkInterrupted": lambda: fdbqueue.BulkInterrupted(
        "One stopped.", report=BulkReport(3, 30, HERE, HERE, 1), missing=[(3, 5)], unknown=[(5, 6)]
    ),
    "CheckFailed": lambda: fdbqueue.CheckFailed("It raised.", type="order", position=HERE),
    "CodecError": lambda: fdbqueue.CodecError("No text.", position=HERE),
    "CompletionError": lambda: fdbqueue.CompletionError("It is dead.", outcome="dead", error="no stock"),
    "FDBError": lambda: FDBError(1020),
    "FormatError": lambda: fdbqueue.FormatError("No item.", position=HERE),
    "LeaseLost": lambda: LeaseLost("It is gone.", lost=[HERE], reasons={HERE: "It expired."}),
    "OtherCodec": lambda: fdbqueue.OtherCodec("It is json.", position=HERE),
    "QueueFull": lambda: fdbqueue.QueueFull("No room.", limit=Quota(items=5), wanted=7, prefix=b"q", room=2),
    "QueuePaused": lambda: fdbqueue.QueuePaused("It is paused.", by="me", reason="repair"),
    "QueueRenamed": lambda: fdbqueue.QueueRenamed("It is renamed.", name=("new", 1)),
    "RetryIn": lambda: RetryIn(30, "no stock"),
    "SelectorError": lambda: fdbqueue.SelectorError("No condition.", line=2, column=3),
    "Snooze": lambda: Snooze(60),
    "Stopped": lambda: importlib.import_module("fdbqueue.cli.errors").Stopped(15),
    "Unsupported": lambda: importlib.import_module("fdbqueue.engine.embedded.client.options").Unsupported(
        "open_tenant"
    ),
}
"""Errors whose constructor takes something other than a message."""


def classes() -> Iterator[type[BaseException]]:
    """Yield the classes of the library's own errors, and those that its layers offer."""
    for module in pkgutil.walk_packages(fdbqueue.__path__, "fdbqueue."):
        importlib.import_module(module.name)
    offered = [getattr(fdbqueue.layers, name) for name in fdbqueue.layers.__all__]
    yield from (one for one in offered if isinstance(one, type) and issubclass(one, BaseException))
    bases: list[type[BaseException]] = [FdbQueueError, FDBError]
    while bases:
        one = bases.pop()
        if one.__module__.startswith("fdbqueue."):
            yield one
        bases += one.__subclasses__()


@pytest.mark.parametrize(
    "again",
    [*(lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in range(6)), copy.copy, copy.deepcopy],
    ids=[*(f"pickle {n}" for n in range(6)), "copy", "deepcopy"],
)
def test_an_error_is_pickled_and_copied_with_all_it_has(again: Callable[[Any], Any]) -> None:
    found = {one.__name__: one for one in classes()}
    assert {*MADE, "GiveUp", "StorageError", "TransferError"} <= found.keys()
    for name, kind in found.items():
        error = MADE[name]() if name in MADE else kind("What happened.")
        error.add_note("a note")
        back = again(error)
        assert (type(back), str(back), back.args) == (type(error), str(error), error.args)
        assert vars(back) == vars(error), name
        assert repr(back) == repr(error)


class Shop(LeaseLost):
    """An error of a program's own, with a constructor of its own."""

    def __init__(self, item: int) -> None:
        super().__init__(f"Item {item} is lost.", lost=[])
        self.item = item


def test_an_error_that_a_program_derives_is_pickled_too() -> None:
    back = pickle.loads(pickle.dumps(Shop(7)))
    assert (str(back), back.item, back.lost) == ("Item 7 is lost.", 7, [])


def lose_a_lease() -> None:
    with fdbqueue.open("memory:") as db:
        leases = Leases(Queue("q", codec="str"))
        leases.enqueue(db, "a")
        lease = leases.lease(db)
        assert lease is not None
        leases.ack(db, lease)
        leases.ack(db, lease)


def test_a_pool_of_processes_hands_over_the_error_of_its_worker() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(LeaseLost, match="acked") as lost:
            pool.submit(lose_a_lease).result(timeout=120)
        assert len(lost.value.lost) == 1
        assert pool.submit(len, "abc").result(timeout=120) == 3
