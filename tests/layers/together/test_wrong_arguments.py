"""A wrong argument is refused by a sentence with its name, the value and the remedy, and no key is touched.

The table has the verb or class, its argument, wrong values, the error and its text. `test_every_wrong_kind.py` gives
every argument of every verb a value of every kind, without asking for a text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    Blobs,
    EarliestDeadline,
    Gate,
    Leases,
    Messages,
    MessageType,
    PriorityQueue,
    SmartQueue,
    StagedQueue,
    Subscriptions,
    Tasks,
)
from fdbqueue.layers.middleware.token_bucket import TokenBucket
from fdbqueue.layers.streams import Stream
from tests.helpers.verbs import Scene
from tests.layers.together.test_every_wrong_kind import forms, plain_terms
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER
from tests.layers.together.test_wrong_constructors import MADE, Made

ALSO_MADE: dict[str, Callable[[Scene], Made]] = {
    "Stream": lambda s: (Stream, {"queue": s.queue, "name": "s"}),
    "TokenBucket": lambda s: (TokenBucket, {"queue": s.queue, "name": "smtp", "count": 1}),
}
T, V, TV = TypeError, ValueError, (TypeError, ValueError)
LIMITED = (
    *("Deadlines.claim", "Leases.lease_many", "Leases.reclaim", "PriorityQueue.dequeue_many", "Queue.dequeue_many"),
    *("Queue.inspect", "RelaxedQueue.dequeue_many", "Resend.fetch_many", "SmartQueue.dequeue_many"),
    *("StagedQueue.dequeue_many", "StagedQueue.lease_many", "Subscription.lease_many", "Subscriptions.count"),
)
BROWSERS = tuple(
    f"{layer}.browse"
    for layer in ("DeadLetters", "Groups", "Leases", "PriorityQueue", "Queue", "RelaxedQueue", "Subscriptions")
)
WITH_HEADERS = (
    *("FollowUp", "Leases.enqueue", "Leases.enqueue_many", "PriorityQueue.enqueue", "Queue.enqueue"),
    *("Results.enqueue", "Sessions.enqueue", "SmartQueue.enqueue", "SmartSessions.enqueue", "StagedQueue.enqueue"),
    "Subscriptions.enqueue",
)
SWITCHES = (
    *(("Subscriptions.enqueue", "immediate"), ("Subscriptions.subscribe", "exclusive"), ("Consumer", "signals")),
    *(("Worker", "signals"), ("Tasks", "eager"), ("SmartQueue", "debug"), ("SmartSessions", "debug")),
)
TIMES = ("delay", "ttl", "at")
NO_NAMES = ["", 200 * "é", None, 5, b"red", ["red"], {"red": 1}]
PART = "duty_cycle is a part of the time"

Verb = Callable[..., Any]
Row = tuple[str | tuple[str, ...], str, list[Any], Any, str]
TABLE: list[Row] = [
    (LIMITED, "limit", ["3", None, 1.5, True], T, "limit is how many .*, an integer, not {wrong!r}"),
    (LIMITED, "limit", [0, -1], V, "limit is how many .*, at least 1, not {wrong}"),
    ("Subscriptions.stats", "limit", ["3", True, 1.5, [1], 0, -1], TV, "limit is how many"),
    ("Queue.dequeue_many", "limit", [10**30], V, r"limit is how many items to take, less than 2\^63, not 1000"),
    (BROWSERS, "limit", ["3"], T, "limit is how many items to look at, an integer, or None for all, not '3'"),
    (BROWSERS, "after", [5], T, "an item's Position, not 5"),
    (BROWSERS, "before", [5], T, "an item's Position, not 5"),
    (BROWSERS, "reverse", ["yes", 1, None], T, "reverse is True or False, not"),
    (BROWSERS, "duty_cycle", [None, "0.5", True], T, f"{PART}, a number over 0 and up to 1, not"),
    (BROWSERS, "duty_cycle", [0, -1, 1.1, 2, nan], V, f"{PART}, over 0 and up to 1, not {{wrong}}"),
    ("Leases.browse", "state", ["lost"], V, "state is one of 'available', 'leased', 'delayed', 'dead', not 'lost'"),
    ("PriorityQueue.browse", "level", [-1, 3], V, "from 0 to 2"),
    *(
        (verb, "limit", ["3"], T, "limit is how many dead letters, an integer, or None for all, not '3'")
        for verb in ("DeadLetters.redrive", "DeadLetters.purge")
    ),
    (("Leases.lease", "Subscription.lease", "StagedQueue"), "consumer", [5], T, "consumer is a text, the name in its"),
    (
        WITH_HEADERS,
        "headers",
        ["", b"", [], 0, False, 5, "red", [("color", "red")]],
        CodecError,
        "Headers are a mapping",
    ),
    *((verb, name, ["no", "", 0, None], T, f"{name} is True or False, not {{wrong!r}}") for verb, name in SWITCHES),
    *(("Subscriptions.enqueue", name, ["", (), True], T, f"{name} is a number of seconds") for name in TIMES),
    *(("Subscriptions.enqueue", name, [2e13, 1e300], V, f"{name} is a number .* which is over 1e") for name in TIMES),
    ("Leases.enqueue", "delay", ["", (), True], T, "delay is a number of seconds"),
    ("Leases.lease", "duration", [0, inf, nan, -1, 1e300], V, "duration is a number of seconds"),
    ("Sessions.lease", "timeout", [-1, nan, "soon"], TV, "timeout is a number of seconds"),
    ("Results.enqueue", "then", ["", b"", "x", 7], T, "`then` is a FollowUp"),
    ("Done", "then", ["", b"", "x", 7], T, "`then` is a FollowUp"),
    ("Results", "type", ["int", 7, object()], T, "is not supported"),
    ("Leases", "max_attempts", [0], V, "at least 1"),
    ("Leases", "head", ["x"], T, "head is a Head"),
    ("Queue.register", "max_attempts", [0, "3"], TV, "max_attempts"),
    ("Queue.register", "backoff", [7], T, "backoff"),
    (("Blobs", "Leases", "Sessions", "Stream", "Tasks", "TokenBucket"), "clock", [5], T, "function"),
    ("Watchdog", "interval", ["1", 0], TV, "interval is a number of seconds,( more than 0,)? not {wrong!r}"),
    ("Watchdog", "batch", [0], V, "batch is how many timers one transaction fires, at least 1, not 0"),
    (("Levels", "AmqpLevels"), "count", ["x", None, 2.5, True], T, "count is the number of levels, an integer, not"),
    ("Levels", "count", [0, 257], V, "1 to 256 levels"),
    ("AmqpLevels", "count", [0, 11, 257], V, "1 to 10 priorities"),
    ("Levels", "of", ["size"], T, "of is a function from a value to its priority, not 'size'"),
    ("PriorityQueue", "levels", ["3"], T, "levels is a number of levels, or Levels, .* not '3'"),
    ("RelaxedQueue", "window", ["3"], T, "window is among how many first items to pick, an integer, not '3'"),
    ("RelaxedQueue", "window", [0], V, "window"),
    ("Queue", "name", ["", b"", (), Subspace()], V, "A queue needs a"),
    ("Queue", "order", [EarliestDeadline], T, r"not the class EarliestDeadline: give order=EarliestDeadline\(\)"),
    ("Queue", "order", ["fifo"], T, "order is an object with a name and rank.*not 'fifo'. Leave it out for first in"),
    ("Queue", "order", [len], T, "order is an object with a name and rank"),
    ("Sessions", "gates", [[Gate("acme", 1)]], T, "gates is a function"),
    (("Gate", "Sessions.gate"), "name", [None, 3, "", (), ["acme"], (object(),)], TV, "gate"),
    ("Sessions.set_limit", "gate", [None, 3, "", (), ["acme"]], TV, "gate"),
    ("Consumer", "health", ["", "file:", -1, 70_000, "x", "host:", "host:99999", 1.5, True, ["file:x"]], TV, "health"),
    ("exponential", "first", [-1], V, "first is a number of seconds, more than 0, not -1"),
    ("exponential", "first", ["1"], T, "first is a number of seconds, not '1'"),
    ("exponential", "factor", [0.5], V, "factor is a number, 1 or more, not 0.5"),
    ("exponential", "factor", [None], T, "factor is a number, not None"),
    ("exponential", "jitter", [-0.1], V, "jitter is a number, 0 or more, not -0.1"),
    ("exponential", "longest", [0], V, "longest is a number of seconds, more than 0, not 0"),
    ("constant", "seconds", [-1], V, "seconds is a number of seconds, 0 or more, not -1"),
    ("constant", "seconds", ["1"], T, "seconds is a number of seconds, not '1'"),
    ("RateLimit", "db", ["memory:"], T, "takes the database"),
    ("RateLimit", "count", [0, "5"], TV, "count"),
    *(("RateLimit", name, [wrong], TV, name) for name, wrong in (("seconds", 0), ("burst", 0), ("key", 7))),
    ("RetryIn", "seconds", [-1, "5", None, nan, True], TV, "seconds"),
    ("TimeLimit", "seconds", [0, -1, "5", inf, None], TV, "seconds"),
    (
        "RetryBy",
        "rules",
        [{}, None, [V], {"ValueError": 5}, {V: "5"}, {V: -1}, {V: int}],
        TV,
        "RetryBy|rule|exception",
    ),
    *(("LogItems", name, [wrong], T, name) for name, wrong in (("logger", "x"), ("level", "INFO"), ("values", "yes"))),
    ("Subscription.grant", "items", [1.5, inf], V, "an integer from 0 on"),
    ("Subscription.grant", "size_bytes", ["9"], V, "an integer from 0 on"),
    (("Subscriptions.subscribe", "Subscriptions.unsubscribe"), "name", NO_NAMES, TV, "subscription is named|name of a"),
    ("Subscriptions.stats", "after", [wrong for wrong in NO_NAMES if wrong], TV, "subscription is named|name of a"),
    (("Subscriptions.enqueue", "Subscriptions.enqueue_many"), "priority", [0], V, "no levels, and so no priorities"),
]
"""Verb or class, argument, wrong values, error, text."""
CELLS = [
    pytest.param(place, name, wrong, error, said, id=f"{place}-{name}-{wrong!r:.20}")
    for places, name, wrongs, error, said in TABLE
    for place in ([places] if isinstance(places, str) else places)
    for wrong in wrongs
]


@pytest.mark.parametrize(("place", "name", "wrong", "error", "said"), CELLS)
def test_a_wrong_argument_is_refused(
    db: Any, space: Subspace, place: str, name: str, wrong: Any, error: Any, said: str
) -> None:
    scene = Scene(db, space)
    if "." in place:
        call = (EITHER | DATABASE_ONLY)[place](scene)
        calls: list[Verb] = [partial(form, db) for form in forms(call.verb)]
        terms = plain_terms(call)
    else:
        make, terms = (MADE | ALSO_MADE)[place](scene)
        calls = [make]
    before = scene.rows()
    for one in calls:
        with pytest.raises(error, match=said.format(wrong=wrong) if "{wrong" in said else said):
            one(**{**terms, name: wrong})
    assert scene.rows() == before


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


@pytest.mark.parametrize("verb", ["ack_many", "nack_many", "snooze_many", "extend_many"])
def test_one_lease_in_place_of_several_is_refused(db: Any, queue: Queue, verb: str) -> None:
    leases = Leases(queue)
    leases.enqueue(db, 1)
    lease = leases.lease(db)
    assert lease is not None
    terms = {"delay": 1} if verb == "snooze_many" else {}
    for wrong in (lease, lease.handle, None, 5):
        with pytest.raises(TypeError, match=rf"{verb} takes leases, as in {verb}\(db, \[lease\]\), not"):
            getattr(leases, verb)(db, wrong, **terms)

    assert leases.stats(db).leased == 1


SWAPPED: dict[str, Callable[[Queue], Verb]] = {
    "Queue.enqueue": lambda queue: queue.enqueue,
    "Leases.enqueue": lambda queue: Leases(queue).enqueue,
    "StagedQueue.enqueue": lambda queue: StagedQueue(queue).enqueue,
    "PriorityQueue.enqueue": lambda queue: PriorityQueue(queue).enqueue,
    "Subscriptions.enqueue": lambda queue: Subscriptions(queue).enqueue,
    "SmartQueue.enqueue": lambda queue: (
        SmartQueue(Queue(queue.layout.space, codec=Messages(MessageType("call")))).enqueue
    ),
}


@pytest.mark.parametrize("name", sorted(SWAPPED))
def test_a_value_in_the_place_of_the_database_is_named(db: Any, queue: Queue, name: str) -> None:
    with pytest.raises(TypeError, match=r"a database.*not dict.*fdbqueue\.open returned|A database .*, not dict"):
        SWAPPED[name](queue)({"type": "call"}, db)


def test_values_in_the_place_of_the_database_are_named(db: Any, queue: Queue) -> None:
    for many in (queue, Leases(queue), PriorityQueue(queue)):
        with pytest.raises(TypeError, match=r"A database or a transaction was expected, not list: the first argument"):
            many.enqueue_many([1], db)  # type: ignore[arg-type]


def test_weights_of_a_wrong_kind_are_refused(queue: Queue) -> None:
    with pytest.raises(TypeError, match=r"weights has an integer for each level, as in weights=\[3, 2, 1\], not 3"):
        PriorityQueue(queue, levels=3, weights=3)  # type: ignore[arg-type]


ELSEWHERE: list[tuple[Callable[[Queue], Any], tuple[Any, ...], dict[str, Any], str]] = [
    (lambda queue: queue.enqueue, (1,), {"delay": 5}, "'delay': Leases(queue).enqueue has it"),
    (lambda queue: queue.enqueue, (1,), {"priority": 0}, "'priority': PriorityQueue(queue).enqueue has it"),
    (lambda queue: queue.enqueue_many, ([1],), {"ttl": 5}, "'ttl': Leases(queue).enqueue_many has it"),
    (lambda queue: queue.dequeue, (), {"timeout": 5}, "'timeout': StagedQueue(queue).dequeue has it"),
    (lambda queue: queue.dequeue, (), {"limit": 5}, "'limit': dequeue_many has it"),
    (lambda queue: Leases(queue).lease, (), {"timeout": 5}, "'timeout': StagedQueue(queue).lease has it"),
    (lambda queue: Leases(queue).lease_many, (), {"timeout": 5}, "'timeout': StagedQueue(queue).lease_many has it"),
    (lambda queue: Leases(queue).enqueue, (1,), {"priority": 0}, "'priority': PriorityQueue(queue).enqueue has it"),
    (lambda queue: StagedQueue(queue).enqueue, (1,), {"delay": 0}, "'delay': Leases(queue).enqueue has it"),
]


@pytest.mark.parametrize(("verb_of", "arguments", "terms", "said"), ELSEWHERE)
def test_a_parameter_that_another_layer_has_is_named_with_the_layer(
    db: Any, queue: Queue, verb_of: Callable[[Queue], Any], arguments: Any, terms: dict[str, Any], said: str
) -> None:
    verb = verb_of(queue)
    with pytest.raises(TypeError, match=re.escape(said)):
        verb(db, *arguments, **terms)
    with pytest.raises(TypeError, match=re.escape(said)):
        asyncio.run(verb.aio(db, *arguments, **terms))


def test_a_parameter_that_no_layer_has_is_reported_as_python_does(db: Any, queue: Queue) -> None:
    with pytest.raises(TypeError, match=r"enqueue\(\) got an unexpected keyword argument 'colour'$"):
        queue.enqueue(db, 1, colour="red")  # type: ignore[call-arg]


def test_a_reason_is_a_text(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    leases.enqueue(db, 1)
    lease = leases.lease(db)
    assert lease is not None

    with pytest.raises(TypeError, match=r"error is a text, as in error=str\(error\), not ValueError\('x'\)"):
        leases.nack(db, lease, error=ValueError("x"))  # type: ignore[arg-type]
    assert leases.stats(db).leased == 1


@pytest.mark.parametrize("wrong", ["1:ab", [5], 5])
def test_a_dead_letter_is_named_by_its_position(db: Any, queue: Queue, wrong: Any) -> None:
    for verb in (Leases(queue).dead.redrive, Leases(queue).dead.purge):
        with pytest.raises(TypeError, match="A dead letter is named by its Position, as browse shows it, not by"):
            verb(db, wrong)


NONE_FOR_ALL = {
    **{f"{layer}.{verb}": "position" for layer in ("DeadLetters", "Sessions") for verb in ("redrive", "purge")},
    "OperationLog.forget": "until",
}


@pytest.mark.parametrize("name", NONE_FOR_ALL)
def test_none_for_all_is_told_to_the_line_that_gives_it(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    argument = NONE_FOR_ALL[name]
    call = EITHER[name](scene)
    given = f"None as .*{argument}.* is deprecated since 0.3.0 .* Use the call without it, for all"
    nothing: Any = {argument: None}

    async def awaited() -> None:
        await call.verb.aio(db, *call.args, **nothing)

    for form in (lambda: call.verb(db, *call.args, **nothing), lambda: asyncio.run(awaited())):
        with pytest.warns(DeprecationWarning, match=given) as told:
            form()
        assert [one.filename for one in told] == [__file__]
    call.verb(db, *call.args)  # without it there is no warning, which would be an error here


def test_headers_of_a_blob_are_refused_when_its_item_is_enqueued(db: Any, queue: Queue) -> None:
    with pytest.raises(CodecError, match="Headers are a mapping whose keys are str"):
        Blobs(Leases(queue)).write(db, 1, headers="").commit()  # type: ignore[arg-type]
    assert queue.is_empty(db)


def test_an_empty_mapping_is_no_headers(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1, headers={})
    found = queue.dequeue(db)
    assert found is not None
    assert found.headers == {}


@pytest.mark.parametrize("wrong", ["", b"", [], 0])
def test_unique_is_no_empty_value(queue: Queue, wrong: Any) -> None:
    def send(to: str) -> None:
        """Send nothing."""

    app = Tasks(queue.layout.space)
    with pytest.raises(TypeError, match=r"name of a parameter|names the parameter"):
        app.task(unique=wrong)(send)
    assert not app.tasks


def test_places_and_sizes_in_a_blob_are_integers(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    with Blobs(leases).write(db, 1) as out:
        out.write(b"data")
    lease = leases.lease(db)
    assert lease is not None
    with Blobs(leases).read(db, lease) as data:
        calls: list[Verb] = [data.seek, data.read, data.read1]
        for call in calls:
            with pytest.raises(TypeError, match="integer"):
                call(1.5)
        assert data.read() == b"data"
