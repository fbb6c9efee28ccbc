"""Every public verb refuses every wrong kind of argument by a sentence of its own, before any key is touched.

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
from fdbqueue import FDBError
from fdbqueue.engine import Subspace
from fdbqueue.errors import FdbQueueError
from fdbqueue.layers import Follower
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
def test_a_verb_that_makes_its_own_transactions_does_too(db: Any, space: Subspace, name: str) -> None:
    scene = Scene(db, space)

    assert list(mistakes(scene, DATABASE_ONLY[name](scene), lambda: db)) == []
