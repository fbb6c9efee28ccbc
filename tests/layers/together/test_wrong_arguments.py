"""A wrong argument is refused by a sentence with its name, the value and the remedy, and no key is touched."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue import CodecError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.layers import (
    AmqpLevels,
    Blobs,
    Consumer,
    Deadlines,
    Done,
    EarliestDeadline,
    FollowUp,
    Leases,
    Levels,
    Messages,
    MessageType,
    PriorityQueue,
    RelaxedQueue,
    Results,
    Sessions,
    SmartQueue,
    SmartSessions,
    StagedQueue,
    Subscriptions,
    Tasks,
    Watchdog,
    Worker,
)

Call = Callable[..., Any]


@pytest.fixture
def queue(space: Subspace) -> Queue:
    return Queue(space, codec="json")


def limited(queue: Queue) -> dict[str, Call]:
    smart = SmartQueue(Queue(queue.layout.space, codec=Messages(MessageType("call"))))
    subscriptions = Subscriptions(queue)
    return {
        "Queue.dequeue_many": queue.dequeue_many,
        "Leases.lease_many": Leases(queue).lease_many,
        "Leases.reclaim": Leases(queue).reclaim,
        "StagedQueue.dequeue_many": StagedQueue(queue).dequeue_many,
        "StagedQueue.lease_many": StagedQueue(queue).lease_many,
        "RelaxedQueue.dequeue_many": RelaxedQueue(queue).dequeue_many,
        "PriorityQueue.dequeue_many": PriorityQueue(Queue(queue.layout.space)).dequeue_many,
        "SmartQueue.dequeue_many": smart.dequeue_many,
        "Deadlines.claim": Deadlines(smart).claim,
        "Resend.fetch_many": lambda db, limit: smart.resend.fetch_many(db, "B", limit=limit),
        "Subscription.lease_many": subscriptions.open("all").lease_many,
        "Subscriptions.count": subscriptions.count,
    }


NAMES = sorted(limited(Queue("names")))
BROWSERS: dict[str, Callable[[Queue], Call]] = {
    "Queue": lambda queue: queue.browse,
    "Leases": lambda queue: Leases(queue).browse,
    "DeadLetters": lambda queue: Leases(queue).dead.browse,
    "PriorityQueue": lambda queue: PriorityQueue(queue).browse,
    "RelaxedQueue": lambda queue: RelaxedQueue(queue).browse,
    "Subscriptions": lambda queue: Subscriptions(queue).browse,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", ["3", None, 1.5, True])
def test_a_limit_that_is_no_integer_is_refused(db: Any, queue: Queue, name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"limit is how many .*, an integer, not {wrong!r}"):
        limited(queue)[name](db, limit=wrong)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [0, -1])
def test_a_limit_below_one_is_refused(db: Any, queue: Queue, name: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"limit is how many .*, at least 1, not {wrong}"):
        limited(queue)[name](db, limit=wrong)


@pytest.mark.parametrize("name", sorted(BROWSERS))
def test_wrong_arguments_of_a_browser_are_refused(db: Any, queue: Queue, name: str) -> None:
    browse = BROWSERS[name](queue)
    with pytest.raises(TypeError, match="limit is how many items to look at, an integer, or None for all, not '3'"):
        browse(db, limit="3")
    for border in ("after", "before"):
        with pytest.raises(TypeError, match="an item's Position, not 5"):
            browse(db, **{border: 5})
    with pytest.raises(ValueError, match="duty_cycle is a part of the time"):
        browse(db, duty_cycle=2)


def test_a_state_that_no_item_has_is_refused(db: Any, queue: Queue) -> None:
    with pytest.raises(ValueError, match="state is one of 'available', 'leased', 'delayed', 'dead', not 'lost'"):
        Leases(queue).browse(db, state="lost")  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_a_wrong_limit_of_dead_letters_is_refused(db: Any, queue: Queue, verb: str) -> None:
    with pytest.raises(TypeError, match="limit is how many dead letters, an integer, or None for all, not '3'"):
        getattr(Leases(queue).dead, verb)(db, limit="3")


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


SWAPPED: dict[str, Callable[[Queue], Call]] = {
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


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (EarliestDeadline, r"not the class EarliestDeadline: give order=EarliestDeadline\(\)"),
        ("fifo", "order is an object with a name and rank.*not 'fifo'. Leave it out for first in, first out"),
        (lambda value: 1, "order is an object with a name and rank"),
    ],
)
def test_a_bad_order_is_refused(order: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Queue("orders", order=order)


@pytest.mark.parametrize("wrong", ["x", None, 2.5, True])
def test_a_number_of_levels_that_is_no_integer_is_refused(wrong: Any) -> None:
    for levels in (Levels, AmqpLevels):
        with pytest.raises(TypeError, match=rf"count is the number of levels, an integer, not {wrong!r}"):
            levels(wrong)


def test_levels_and_weights_of_a_wrong_kind_are_refused(queue: Queue) -> None:
    with pytest.raises(TypeError, match=r"levels is a number of levels, or Levels, .* not '3'"):
        PriorityQueue(queue, levels="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"weights has an integer for each level, as in weights=\[3, 2, 1\], not 3"):
        PriorityQueue(queue, levels=3, weights=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of is a function from a value to its priority, not 'size'"):
        Levels(3, of="size")  # type: ignore[arg-type]


@pytest.mark.parametrize("empty", ["", b"", ()])
def test_an_empty_name_is_refused(empty: Any) -> None:
    with pytest.raises(ValueError, match=r"needs a name|needs a subspace of its own"):
        Queue(empty)


def test_a_consumers_name_is_a_text(db: Any, queue: Queue) -> None:
    wrong: Any = 5
    calls: list[Call] = [
        lambda: Leases(queue).lease(db, consumer=wrong),
        lambda: Subscriptions(queue).open("all").lease(db, consumer=wrong),
        lambda: StagedQueue(queue, consumer=wrong),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="consumer is a text, the name in its leases, not 5"):
            call()


def test_wrong_settings_of_a_watchdog_are_named(queue: Queue) -> None:
    with pytest.raises(TypeError, match="interval is a number of seconds, not '1'"):
        Watchdog(Leases(queue), interval="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch is how many timers one transaction fires, at least 1, not 0"):
        Watchdog(Leases(queue), batch=0)


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


def test_a_window_is_an_integer(queue: Queue) -> None:
    with pytest.raises(TypeError, match="window is among how many first items to pick, an integer, not '3'"):
        RelaxedQueue(queue, window="3")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, "red", [("color", "red")]])
def test_headers_are_a_mapping(db: Any, queue: Queue, wrong: Any) -> None:
    with pytest.raises(CodecError, match="Headers are a mapping whose keys are str"):
        queue.enqueue(db, 1, headers=wrong)
    assert queue.is_empty(db)


def _smart(queue: Queue) -> Queue:
    return Queue(queue.layout.space, codec=Messages(MessageType("call")))


WITH_HEADERS: dict[str, Callable[[Queue, Any, Any], Any]] = {
    "Queue": lambda queue, db, headers: queue.enqueue(db, 1, headers=headers),
    "Leases": lambda queue, db, headers: Leases(queue).enqueue(db, 1, headers=headers),
    "many": lambda queue, db, headers: Leases(queue).enqueue_many(db, [1], headers=headers),
    "StagedQueue": lambda queue, db, headers: StagedQueue(queue).enqueue(db, 1, headers=headers),
    "Subscriptions": lambda queue, db, headers: Subscriptions(queue).enqueue(db, 1, headers=headers, immediate=True),
    "Sessions": lambda queue, db, headers: Sessions(queue).enqueue(db, 1, session="ann", headers=headers),
    "Results": lambda queue, db, headers: Results(Leases(queue)).enqueue(db, 1, headers=headers),
    "a level": lambda queue, db, headers: PriorityQueue(Queue(queue.layout.space)).enqueue(
        db, b"1", priority=1, headers=headers
    ),
    "SmartQueue": lambda queue, db, headers: SmartQueue(_smart(queue)).enqueue(db, {"type": "call"}, headers=headers),
    "SmartSessions": lambda queue, db, headers: SmartSessions(Sessions(_smart(queue))).enqueue(
        db, {"type": "call"}, session="ann", headers=headers
    ),
    "Blobs": lambda queue, db, headers: Blobs(Leases(queue)).write(db, 1, headers=headers).commit(),
    "FollowUp": lambda queue, db, headers: FollowUp(queue, 1, headers=headers),
}


@pytest.mark.parametrize("wrong", ["", b"", [], 0, False])
@pytest.mark.parametrize("enqueue", sorted(WITH_HEADERS))
def test_empty_headers_of_another_kind_are_no_mapping(db: Any, queue: Queue, enqueue: str, wrong: Any) -> None:
    with pytest.raises(CodecError, match="Headers are a mapping whose keys are str"):
        WITH_HEADERS[enqueue](queue, db, wrong)
    assert queue.is_empty(db)


def test_an_empty_mapping_is_no_headers(db: Any, queue: Queue) -> None:
    queue.enqueue(db, 1, headers={})
    found = queue.dequeue(db)
    assert found is not None
    assert found.headers == {}


SWITCHES: dict[str, Callable[[Queue, Any, Any], Any]] = {
    "immediate": lambda queue, db, wrong: Subscriptions(queue).enqueue(db, 1, immediate=wrong),
    "exclusive": lambda queue, db, wrong: Subscriptions(queue).subscribe(db, "all", exclusive=wrong),
    "signals": lambda queue, db, wrong: Consumer(Leases(queue), print, signals=wrong),
    "signals of Worker": lambda queue, db, wrong: Worker(Tasks(queue.layout.space), signals=wrong),
    "eager": lambda queue, db, wrong: Tasks(queue.layout.space, eager=wrong),
    "debug": lambda queue, db, wrong: SmartQueue(_smart(queue), debug=wrong),
    "debug of SmartSessions": lambda queue, db, wrong: SmartSessions(Sessions(_smart(queue)), debug=wrong),
}


@pytest.mark.parametrize("wrong", ["no", "", 0, None])
@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_a_switch_is_true_or_false(db: Any, queue: Queue, switch: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"{switch.split()[0]} is True or False, not {wrong!r}"):
        SWITCHES[switch](queue, db, wrong)
    assert not list(db.get_range(*queue.layout.whole_range()))


@pytest.mark.parametrize("wrong", ["", b"", "x", 7])
def test_what_follows_is_follow_ups(db: Any, queue: Queue, wrong: Any) -> None:
    for call in (lambda: Results(Leases(queue)).enqueue(db, 1, then=wrong), lambda: Done(1, wrong)):
        with pytest.raises(TypeError, match="`then` is a FollowUp"):
            call()
    assert queue.is_empty(db)


@pytest.mark.parametrize("wrong", ["", b"", [], 0])
def test_unique_is_no_empty_value(queue: Queue, wrong: Any) -> None:
    def send(to: str) -> None:
        """Send nothing."""

    app = Tasks(queue.layout.space)
    with pytest.raises(TypeError, match=r"name of a parameter|names the parameter"):
        app.task(unique=wrong)(send)
    assert not app.tasks


@pytest.mark.parametrize("wrong", ["", ()])
def test_an_empty_delay_is_no_number(db: Any, queue: Queue, wrong: Any) -> None:
    with pytest.raises(TypeError, match="delay is a number of seconds"):
        Leases(queue).enqueue(db, 1, delay=wrong)


@pytest.mark.parametrize("wrong", ["int", 7, object()])
def test_a_type_of_results_is_a_type(queue: Queue, wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not supported"):
        Results(Leases(queue), type=wrong)


def test_places_and_sizes_in_a_blob_are_integers(db: Any, queue: Queue) -> None:
    leases = Leases(queue)
    with Blobs(leases).write(db, 1) as out:
        out.write(b"data")
    lease = leases.lease(db)
    assert lease is not None
    with Blobs(leases).read(db, lease) as data:
        calls: list[Call] = [data.seek, data.read, data.read1]
        for call in calls:
            with pytest.raises(TypeError, match="integer"):
                call(1.5)
        assert data.read() == b"data"
    with pytest.raises(TypeError, match="clock is a function"):
        Blobs(leases, clock=7)  # type: ignore[arg-type]
