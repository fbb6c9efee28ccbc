"""Every public verb and class refuses every wrong kind of argument by a sentence of its own, and touches no key.

A raw error comes from an expression of the library's or of a package: ``'int' object is not iterable``. A refusal comes
from a ``raise`` of the library's. So this looks at the statement that the innermost frame was in.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import linecache
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import fdbqueue
import fdbqueue.layers
from fdbqueue import FDBError, Queue
from fdbqueue.engine import Subspace
from fdbqueue.errors import FdbQueueError
from fdbqueue.layers import Follower, Leases, Messages, MessageType, Sessions, Tasks
from tests.helpers.verbs import Call, Scene
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER

pytestmark = [pytest.mark.engines("memory"), pytest.mark.filterwarnings("ignore:None as .* is deprecated")]

HOME = Path(fdbqueue.__file__).resolve().parents[1]
RUNS_ON = {"Consumer.drain", "Consumer.run", "Consumer.running", "Monitor.run", "Watchdog.run"}
RUNS_ON |= {"Worker.drain", "Worker.run", "Worker.running"}
"""They return only when they are stopped. Their arguments are those of the class."""
OF_LAYERS = {"Queue.read", "Queue.transact"}
"""They run a function of the caller's."""
WAITS = {"timeout", "wait"}
"""Parameters for which None or a number means to wait."""


class Nothing:
    """A value of no kind that a verb takes."""

    def __repr__(self) -> str:
        return "<nothing>"


def wrong(scene: Scene) -> list[Any]:
    """Return values, of which most are wrong for any parameter."""
    numbers = [True, 7, -1, 1.5, float("nan"), 10**30, 10**400]
    texts = ["", "x", "\ud800", b"", b"x"]
    collections = [[], [None], [7], ["x"], (), (7,), {}, {7: 7}, {"x": Nothing()}, {1}, iter([7])]
    return [None, *numbers, *texts, *collections, Nothing(), scene.db, fdbqueue.Position(1, b"none")]


def raw(error: BaseException) -> bool:
    """Return whether an error was raised by an expression, and not by a ``raise`` of the library's."""
    if isinstance(error, FdbQueueError | FDBError):
        return False
    if not isinstance(error, TypeError | ValueError | OverflowError | LookupError) or isinstance(error, UnicodeError):
        return True
    frames = list(_frames(error.__traceback__))
    path, line = frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno
    return not (Path(path).is_relative_to(HOME) and line in _raises(path))


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


@cache
def _raises(path: str) -> frozenset[int]:
    """Return the lines of a file's ``raise`` statements."""
    tree = ast.parse("".join(linecache.getlines(path)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return frozenset(line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def told(error: BaseException) -> str:
    """Return an error, and where it was raised."""
    frame = list(_frames(error.__traceback__))[-1]
    where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}"
    return f"{type(error).__name__}: {error} [{where}]"


def forms(verb: Any) -> list[Callable[..., Any]]:
    """Return a verb's blocking form, and its awaitable one."""

    def called(*args: Any, **terms: Any) -> Any:
        result = verb(*args, **terms)
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        endless = isinstance(result, io.IOBase | Follower)
        return list(result) if isinstance(result, Iterator) and not endless else result

    def awaited(*args: Any, **terms: Any) -> Any:
        return asyncio.run(verb.aio(*args, **terms))

    return [called, awaited] if hasattr(verb, "aio") else [called]


def plain_terms(call: Call) -> dict[str, Any]:
    """Return the arguments of a call but the first, by their names. The call does not wait."""
    parameters = inspect.signature(call.verb).parameters.values()
    positional = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    plain = {**dict(zip(positional[1:], call.args, strict=False)), **call.terms}
    return {**plain, "timeout": 0.0} if "timeout" in plain else plain


def mistakes(scene: Scene, call: Call, given: Callable[[], Any]) -> Iterator[str]:
    """Call a verb with one wrong argument after the other, and yield the raw errors."""
    plain = plain_terms(call)
    for one in list(inspect.signature(call.verb).parameters.values())[1:]:
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        for form in forms(call.verb):
            for value in wrong(scene):
                if one.name in WAITS and (value is None or value in (7, 1.5, 10**30)):
                    continue
                if one.name == "within" and value is None:
                    continue  # it reads the keys of all tests of this process
                tr = given()
                try:
                    form(tr, **{**plain, one.name: value})
                except Exception as error:  # noqa: BLE001  the test is about all of them
                    if raw(error):
                        yield f"{form.__name__}({one.name}={value!r:.40}): {told(error)}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(EITHER) - OF_LAYERS))
def test_a_verb_refuses_wrong_arguments_by_its_own_words(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)
    call = EITHER[name](scene)
    before = scene.rows()

    found = list(mistakes(scene, call, db.create_transaction))

    assert found == []
    assert scene.rows() == before


@pytest.mark.parametrize("name", sorted(set(DATABASE_ONLY) - RUNS_ON))
def test_a_verb_that_makes_its_own_transactions_does_too(
    db: Any, space: Subspace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.verbs.renaming.LONGEST_SECONDS", 0.0)
    scene = Scene(db, space)

    assert list(mistakes(scene, DATABASE_ONLY[name](scene), lambda: db)) == []


def _handle(given: Any) -> None:
    """Handle nothing."""


def _more(s: Scene, codec: Any = "str") -> Queue[Any]:
    return Queue(s.space["more"], codec=codec)


_CALLS = Messages(MessageType("call"))
MADE: dict[str, Callable[[Scene], dict[str, Any]]] = {
    "AmqpLevels": lambda s: {"count": 10},
    "Blobs": lambda s: {"queue": s.leases},
    "Completion": lambda s: {"queue_leases": s.leases, "position": s.completion.position},
    "Concurrency": lambda s: {"limit": 1},
    "Consumer": lambda s: {"source": Leases(_more(s)), "handler": _handle},
    "Deadlines": lambda s: {"smart": s.smart},
    "Done": lambda s: {},
    "EarliestDeadline": lambda s: {},
    "FollowUp": lambda s: {"target": s.leases, "value": "x"},
    "Gate": lambda s: {"name": "tenant", "limit": 1},
    "GiveUp": lambda s: {},
    "Group": lambda s: {"groups": s.groups, "name": "import"},
    "Groups": lambda s: {"source": s.leases},
    "Leases": lambda s: {"queue": s.queue},
    "Levels": lambda s: {"count": 3},
    "Limit": lambda s: {"most": 3},
    "LogItems": lambda s: {},
    "MessageType": lambda s: {"name": "call"},
    "Messages": lambda s: {},
    "Monitor": lambda s: {"deadlines": s.deadlines, "handler": _handle},
    "NewState": lambda s: {"value": 1},
    "OperationLog": lambda s: {"name": "log", "queue": s.queue},
    "PriorityQueue": lambda s: {"queue": _more(s)},
    "Queue": lambda s: {"name": "orders"},
    "Rate": lambda s: {"count": 3},
    "RateLimit": lambda s: {"db": s.db, "count": 2},
    "RelaxedQueue": lambda s: {"queue": s.queue},
    "Replace": lambda s: {"message": {"type": "call"}},
    "Results": lambda s: {"source": s.leases},
    "RetryBy": lambda s: {"rules": {OSError: 3}},
    "RetryIn": lambda s: {"seconds": 1},
    "Selector": lambda s: {"text": "kg > 1"},
    "Sessions": lambda s: {"queue": _more(s)},
    "SmartQueue": lambda s: {"queue": _more(s, _CALLS)},
    "SmartSessions": lambda s: {"sessions": Sessions(_more(s, _CALLS))},
    "Snooze": lambda s: {"seconds": 1},
    "StagedQueue": lambda s: {"queue": s.queue},
    "Subscriptions": lambda s: {"queue": s.queue},
    "Tasks": lambda s: {"queue": s.space["more"]},
    "TimeLimit": lambda s: {"seconds": 1},
    "Unique": lambda s: {},
    "Watchdog": lambda s: {"leases": s.leases},
    "Worker": lambda s: {"app": Tasks("tasks")},
    "constant": lambda s: {"seconds": 1},
    "exponential": lambda s: {},
    "keyed": lambda s: {},
    "types": lambda s: {},
}
"""What users make, and the arguments that it needs."""

NOT_MADE = {
    *("AsyncTask", "BaseTask", "Call", "Handle", "Schedule", "Schedules", "Task"),  # by Tasks
    *("Blob", "BlobReader", "BlobWriter"),  # by Blobs
    *("DeadLetters", "Follower", "GateInfo", "GroupStats", "Lease", "LeaseHandle", "Outcome", "Resend"),
    *("ConsumerReport", "SessionHandle", "SessionInfo", "SessionLease", "SessionStats", "Subscription"),
    *("Decision", "Disposition", "ItemFields"),  # no arguments
}
"""Classes whose objects come from verbs."""

USED = {
    "Queue": "peek",
    **dict.fromkeys(("Consumer", "Worker"), "drain"),
    **dict.fromkeys(("Leases", "Sessions"), "stats"),
}
USED |= dict.fromkeys(("Monitor", "Watchdog"), "sweep")
"""What is done with an object once it is made: it must not fail by what it was made with."""


def maker(name: str) -> Callable[..., Any]:
    """Return a public class, or what makes an object."""
    return getattr(fdbqueue.layers, name, None) or getattr(fdbqueue, name)  # type: ignore[no-any-return]


def test_no_public_class_is_left_out() -> None:
    found = {name for name in fdbqueue.layers.__all__ if inspect.isclass(getattr(fdbqueue.layers, name))}

    assert found - NOT_MADE == {name for name in MADE if name[0].isupper()} - {"Queue"}


@pytest.mark.parametrize("name", MADE)
def test_a_class_refuses_wrong_arguments_by_its_own_words(db: Any, space: Subspace, name: str) -> None:
    scene, make, found = Scene(db, space), maker(name), list[str]()
    plain = MADE[name](scene)
    for one in inspect.signature(make).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            continue
        for value in wrong(scene):
            many = one.kind is one.VAR_POSITIONAL
            try:
                made = make(value, **plain) if many else make(**{**plain, one.name: value})
                getattr(made, USED[name])(db) if name in USED else repr(made)
            except Exception as error:  # noqa: BLE001  the test is about all of them
                if raw(error):
                    found.append(f"{one.name}={value!r:.40}: {told(error)}")
    assert found == []
