"""Every public method refuses every wrong kind of argument by a sentence of the library's, and writes no key.

The methods are found by reflection, so a new one is in the test by itself. A class needs a row in `OBJECTS` if its
methods have parameters, and a parameter without a default one in `RIGHT`. The verbs that take a database are in
`test_every_wrong_kind.py`, with the same wrong values and its notion of a raw error.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import GeneratorType, ModuleType
from typing import Any, cast

import pytest

import fdbqueue
import fdbqueue.agents
import fdbqueue.layers
import fdbqueue.observe
import fdbqueue.transfer
from fdbqueue import Position
from fdbqueue.engine import Subspace
from fdbqueue.engine.steps import run
from fdbqueue.engine.verb import BoundVerb, Verb
from fdbqueue.layers import (
    AmqpLevels,
    EarliestDeadline,
    FollowUp,
    ItemFields,
    Levels,
    LogItems,
    Messages,
    MessageType,
    Monitor,
    RateLimit,
    Selector,
    Watchdog,
    Worker,
)
from tests.helpers.verbs import Scene
from tests.layers.together.test_every_wrong_kind import WAITS, raw, told, wrong
from tests.layers.together.test_verbs_in_transactions import DATABASE_ONLY, EITHER

pytestmark = pytest.mark.engines("memory")

MODULES: tuple[ModuleType, ...] = (*(fdbqueue, fdbqueue.layers, fdbqueue.agents, fdbqueue.observe, fdbqueue.transfer),)
NOT_OURS = {"BlobReader", "BlobWriter", "Codec", "Database", "Order", "Subspace", "Transaction"}
"""Classes of the user's, and those with the contract of the binding or of Python's files."""
SAME = {"AsyncTask", "BaseTask"}
"""Their methods are those of `Task`."""
ANYTHING = {
    *("JsonCodec.decode", "JsonCodec.encode", "MsgpackCodec.decode", "MsgpackCodec.encode"),  # in a CodecError
    *("Messages.decode", "Messages.decode_typed", "Messages.encode_as"),  # the same
    *("AmqpLevels.rank", "EarliestDeadline.rank", "Levels.rank"),  # the headers of an enqueue were checked
    *(
        "Done.of",
        "Groups.refused",
        "ItemFields.filter",
        "Subscription.permit",
        "Tasks.is_eager",
    ),  # they look at what the library gives
    *("FdbqueueInstrumentor.instrument", "FdbqueueInstrumentor.uninstrument", "instrument"),  # OpenTelemetry's
}
"""What takes any value, or whose arguments are not ours to judge, or whose errors a queue puts into its own."""

OBJECTS: dict[str, Callable[[Scene], Any]] = {
    "Access": lambda s: fdbqueue.agents.Access({}),
    "AgentClient": lambda s: fdbqueue.agents.AgentClient("127.0.0.1:1", timeout=0.1),
    "AgentServer": lambda s: fdbqueue.agents.AgentServer(s.db, listen="127.0.0.1:0"),
    "AgentWatchdog": lambda s: fdbqueue.agents.AgentWatchdog(s.leases, ["true"]),
    "AmqpLevels": lambda s: AmqpLevels(10),
    "Call": lambda s: s.task.call(),
    "Completion": lambda s: s.completion,
    "Deadlines": lambda s: s.deadlines,
    "EarliestDeadline": lambda s: EarliestDeadline(),
    "FollowUp": lambda s: FollowUp(s.leases, "new"),
    "Follower": lambda s: s.subscriptions.follow(s.db),
    "Group": lambda s: s.group,
    "Groups": lambda s: s.groups,
    "Handle": lambda s: s.handle,
    "ItemFields": lambda s: ItemFields(),
    "JsonCodec": lambda s: fdbqueue.JsonCodec(),
    "Leases": lambda s: s.leases,
    "Levels": lambda s: Levels(3),
    "LogItems": lambda s: LogItems(),
    "Messages": lambda s: Messages(MessageType("call")),
    "MetricsServer": lambda s: fdbqueue.observe.MetricsServer("127.0.0.1:0"),
    "Monitor": lambda s: Monitor(s.deadlines, lambda deadline: None),
    "MsgpackCodec": lambda s: fdbqueue.MsgpackCodec(),
    "Queue": lambda s: s.queue,
    "RateLimit": lambda s: RateLimit(s.db, count=2),
    "Resend": lambda s: s.smart.resend,
    "Schedules": lambda s: s.tasks.schedules,
    "Selector": lambda s: Selector("kg > 1"),
    "Sessions": lambda s: s.sessions,
    "StagedQueue": lambda s: s.staged,
    "Subscriptions": lambda s: s.subscriptions,
    "Task": lambda s: s.task,
    "Tasks": lambda s: s.tasks,
    "Watchdog": lambda s: Watchdog(s.leases),
    "Worker": lambda s: Worker(s.tasks, signals=False),
}
"""How an object is made of which a method with parameters is looked at."""
RIGHT: dict[str, Callable[[Scene], Any]] = {
    "claim": lambda s: None,
    "data": lambda s: b"x",
    "db": lambda s: s.db,
    "duration_us": lambda s: 0,
    "ended": lambda s: None,
    "found": lambda s: [],
    "headers": lambda s: {},
    "id": lambda s: 1,
    "item": lambda s: Position(1, b"none", rank=0),
    "lapsed_us": lambda s: 1,
    "lead_us": lambda s: None,
    "live": lambda s: [],
    "name": lambda s: "note",
    "named": lambda s: None,
    "path": lambda s: "file.jsonl",
    "position": lambda s: Position(1, b"none", rank=0),
    "priority": lambda s: 1,
    "queue": lambda s: s.queue,
    "recipient": lambda s: "B",
    "row": lambda s: s.db.get_range(s.queue.layout.begin, s.queue.layout.end, limit=1)[0],
    "seconds": lambda s: 1.0,
    "session": lambda s: "ann",
    "source": lambda s: s.db,
    "stored": lambda s: b"",
    "target": lambda s: s.db,
    "terms": lambda s: s.task.call().terms,
    "text": lambda s: "kg > 1",
    "timeout": lambda s: 0.0,
    "to": lambda s: "backup",
    "told": lambda s: {},
    "tr": lambda s: s.db.create_transaction(),
    "type": lambda s: 5,
    "until_us": lambda s: 1,
    "url": lambda s: "memory:",
    "value": lambda s: "x",
    "verb": lambda s: "dequeue",
    "wait": lambda s: 0.0,
    "wanted": lambda s: 1,
}
"""A right value of a parameter, by its name."""

DATABASES = {"db", "source", "target"}
"""Parameters for which a database is right. Some calls would run on."""


def public() -> dict[str, inspect.Signature]:
    """Return the public functions and methods that have parameters, beside the verbs of the other tables."""
    found: dict[str, Any] = {}
    for module in MODULES:
        for name in module.__all__:
            one = getattr(module, name)
            if inspect.isclass(one):
                if name not in NOT_OURS | SAME and not issubclass(one, BaseException):
                    found |= {f"{name}.{method}": signature for method, signature in _methods(one)}
            elif inspect.isfunction(one) or isinstance(one, BoundVerb):
                found[name] = inspect.signature(one)
    rest = set(found) - set(DATABASE_ONLY) - set(EITHER) - ANYTHING
    return {name: found[name] for name in sorted(rest) if found[name].parameters}


def _methods(kind: type) -> Iterator[tuple[str, inspect.Signature]]:
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        owner = next(base for base in kind.__mro__ if name in vars(base) or base is object)
        if name.startswith("_") or not owner.__module__.startswith("fdbqueue"):
            continue
        if isinstance(method, staticmethod | classmethod):
            yield name, inspect.signature(getattr(kind, name))
        elif isinstance(method, Verb) or inspect.isfunction(method):
            signature = inspect.signature(method)
            yield name, signature.replace(parameters=list(signature.parameters.values())[1:])


FOR_EVENT_LOOPS = {"aio", "AgentServer.start", "AgentServer.stop"}
"""Coroutines that need an event loop. All others are steps, which `run` drives."""


def forms(scene: Scene, name: str) -> list[Callable[..., Any]]:
    """Return a method of an object of the scene, and its awaitable form."""
    kind, _, method = name.rpartition(".")
    if not kind:
        [home] = [module for module in MODULES if name in module.__all__]
        called = getattr(home, name)
    else:
        home = next(module for module in MODULES if kind in module.__all__)
        owner = getattr(home, kind)
        is_made = not isinstance(inspect.getattr_static(owner, method), staticmethod | classmethod)
        called = getattr(OBJECTS[kind](scene) if is_made else owner, method)

    def finished(*args: Any, **terms: Any) -> None:
        result = called(*args, **terms)
        if name in FOR_EVENT_LOOPS:
            asyncio.run(result)
        elif isinstance(result, Coroutine | GeneratorType):
            run(cast("Coroutine[Any, Any, Any]", result))
        elif isinstance(result, AbstractContextManager):
            with result:
                pass

    def awaited(*args: Any, **terms: Any) -> None:
        asyncio.run(called.aio(*args, **terms))

    return [finished, awaited] if hasattr(called, "aio") else [finished]


def mistakes(scene: Scene, name: str, signature: inspect.Signature) -> Iterator[str]:
    """Call a method with one wrong argument after the other, and yield what is wrong with the answers."""
    for form in forms(scene, name):
        for wanted in signature.parameters.values():
            for value in [*wrong(scene), scene.db.create_transaction()]:
                if wanted.name in WAITS and (value is None or value in (1.5, 7, 10**30)):
                    continue  # it would wait
                if (wanted.name in DATABASES and value is scene.db) or (wanted.name == "consumer" and value is None):
                    continue  # it is right, and would start a server or a copy
                args, terms = arguments(scene, signature, wanted, value)
                before = scene.rows()
                try:
                    form(*args, **terms)
                except OSError as error:
                    if name != "Access.read":  # its docstring says so
                        yield f"{form.__name__}({wanted.name}={value!r:.40}): {told(error)}"
                except Exception as error:  # noqa: BLE001  the test is about all of them
                    if raw(error):
                        yield f"{form.__name__}({wanted.name}={value!r:.40}): {told(error)}"
                    if scene.rows() != before:
                        yield f"{form.__name__}({wanted.name}={value!r:.40}) wrote"


def arguments(
    scene: Scene, signature: inspect.Signature, wanted: inspect.Parameter, value: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call: a wrong one, and right ones for the other parameters that need one."""
    args: list[Any] = []
    terms: dict[str, Any] = {}
    for one in signature.parameters.values():
        if one is wanted:
            given = value
        elif one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        elif one.default is not one.empty and one.name not in WAITS:
            given = one.default
        else:
            given = RIGHT[one.name](scene)
        if one.kind is one.KEYWORD_ONLY:
            terms[one.name] = given
        elif one.kind is one.VAR_KEYWORD:
            terms["wrong"] = given
        else:
            args.append(given)
    return args, terms


@pytest.mark.parametrize("name", public())
def test_a_public_method_refuses_wrong_arguments_by_its_own_words(
    db: Any,
    space: Subspace,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)  # a text may be taken for a path
    caplog.set_level(logging.CRITICAL, logger="fdbqueue")  # until the end of this test

    assert list(mistakes(Scene(db, space), name, public()[name])) == []
