"""What Spark tells of an error in one of its Python processes: the sentence first, then the traceback.

Spark sends the text of an exception to the driver as a traceback, whose last line is the sentence. In the middle of
Spark's own lines it is hard to find. So each method that Spark calls adds the traceback as a note, which comes behind
the sentence, and Spark leaves its own out.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.errors import PySparkException

from fdbqueue import errors

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
HIDE = "SPARK_HIDE_TRACEBACK"
"""Spark's variable: without a traceback it sends the sentence and the notes."""
_KINDS: dict[str, Callable[[str], Exception]] = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.FdbQueueError) and "__init__" not in vars(kind)
}
_KINDS |= {f"{kind.__module__}.{kind.__name__}": kind for kind in (errors.CodecError, errors.FormatError)}
_KINDS[f"{errors.QueuePaused.__module__}.QueuePaused"] = functools.partial(errors.QueuePaused, by="", reason="")
_KINDS[f"{errors.QueueRenamed.__module__}.QueueRenamed"] = functools.partial(errors.QueueRenamed, name=())
_OWN = re.compile(rf"(?:^|: )\s*({'|'.join(map(re.escape, _KINDS))}): (.+)$", re.MULTILINE)
_ARGUMENT = re.compile(r"(?:^|: )\s*(ValueError|TypeError): (.+)\n\nTraceback", re.MULTILINE)
"""Told by a method of `tells`. Another ValueError is the user's own."""
_ARGUMENTS = {"ValueError": ValueError, "TypeError": TypeError}
_NO_LIBRARY = "No module named 'fdbqueue'"


def tells(*methods: str) -> Callable[[C], C]:
    """Return a class decorator: errors of these methods, which Spark calls, begin with their sentence."""

    def decorate(kind: C) -> C:
        for name in methods:
            setattr(kind, name, _telling(getattr(kind, name)))
        return kind

    return decorate


def _telling(method: F) -> F:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: object, **kwargs: object) -> Iterator[Any]:
            with _told():
                yield from method(*args, **kwargs)

        return generate  # type: ignore[return-value]

    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> Any:
        with _told():
            return method(*args, **kwargs)

    return call  # type: ignore[return-value]


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if _is_sparks():
            error.add_note("\n" + "".join(traceback.format_exception(error)).rstrip())
            os.environ[HIDE] = "1"  # the process ends by this exception
        raise


def _is_sparks() -> bool:
    """Return whether this process is one of Spark's, which no code of the user's has started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.split(".")[0] == "pyspark"


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's own error, one sentence, if Spark reports it from another process. Spark's is its cause."""
    try:
        yield
    except PySparkException as error:
        text = str(error)
        if found := _OWN.search(text):
            raise _KINDS[found[1]](found[2]) from error
        if found := _ARGUMENT.search(text):
            raise _ARGUMENTS[found[1]](found[2]) from error
        if _NO_LIBRARY in text:
            raise ModuleNotFoundError(
                "Spark's Python processes have no fdbqueue. Set PYSPARK_PYTHON to a Python that has it, on all"
                f" machines, before the session begins; this process has {sys.executable}.",
                name="fdbqueue",
            ) from error
        raise
