"""Verbs: methods written once as steps. A caller can block on a verb or await it.

>>> from fdbqueue.lowlevel import verb
>>> class Greeter:
...     @verb
...     async def greet(self, name: str) -> str:
...         "Greet someone."
...         return f"hello {name}"
>>> Greeter().greet("you")
'hello you'
>>> import asyncio
>>> asyncio.run(Greeter().greet.aio("you"))
'hello you'

Both forms have the method's own name, signature and docstring:

>>> import inspect
>>> inspect.signature(Greeter().greet) == inspect.signature(Greeter().greet.aio)
True
>>> Greeter().greet.aio.__doc__
'Greet someone.'
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast, overload

from fdbqueue.engine.steps import Steps, for_all_bodies, run, run_async, tell_of_generator

if TYPE_CHECKING:
    import asyncio


# Awaited verbs of one transaction, one after the other.
#
# A verb reads, waits and then writes. If another verb of the same transaction ran while it waits, neither would see
# what
# the other writes: both would take the same item, on a cluster. Verbs of different transactions run side by side.

T = TypeVar("T")


class _VerbsInOrder:
    """The awaited verbs of a transaction that have begun, or wait for their turn."""

    __slots__ = ("lock", "verbs")

    def __init__(self, lock: asyncio.Lock) -> None:
        self.lock = lock
        self.verbs = 0


under_way: dict[tuple[int, int], _VerbsInOrder] = {}
"""By the ids of the transaction, which its verbs keep alive, and of the event loop."""


def is_transaction(given: object) -> bool:
    """Say whether a verb's first argument is a transaction."""
    # A cluster that was not used yet would connect, and block, if it were asked for a name that it does not have.
    return not hasattr(given, "create_transaction") and hasattr(given, "commit")


async def run_in_order(tr: object, steps: Steps[T]) -> T:
    """Run a verb's steps when the verbs of the same transaction that were called before have ended."""
    import asyncio  # whoever awaits has it

    key = id(tr), id(asyncio.get_running_loop())
    line = under_way.get(key)
    if line is None:
        line = under_way[key] = _VerbsInOrder(asyncio.Lock())
    line.verbs += 1
    try:
        async with line.lock:
            return await run_async(steps)
    finally:
        line.verbs -= 1
        if not line.verbs:
            del under_way[key]


S = TypeVar("S")
P = ParamSpec("P")


class _AwaitableForm:
    """The awaitable form of a verb, which blocks no event loop and needs no thread."""

    # No property: notebooks would show the property in place of the verb.

    def __get__(self, verb: BoundVerb[P, T], owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]:
        steps = verb.body

        async def aio(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                begun = steps(*args, **kwargs)
            except TypeError:
                if (explained := _explained(steps, kwargs)) is None:
                    raise
                raise explained from None
            tr: Any = args[0] if args else kwargs.get("tr")
            return await (run_in_order(tr, begun) if is_transaction(tr) else run_async(begun))

        method = cast(MethodType, steps)
        aio.__doc__ = method.__doc__
        aio.__name__ = method.__name__
        aio.__qualname__ = method.__qualname__
        aio.__module__ = method.__module__
        vars(aio)["__wrapped__"] = verb
        return aio


class BoundVerb(Generic[P, T]):
    """A verb of one object: call it, or await its `aio`."""

    # Every call makes one of these, so it computes the texts for `help` and `?` only on demand.

    __slots__ = ("body",)
    body: Callable[P, Steps[T]]

    def steps(self, /, *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        """Return the steps of a call, for use inside another verb: ``await queue.dequeue.steps(tr)``."""
        return for_all_bodies(self.body(*args, **kwargs))

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            begun = self.body(*args, **kwargs)
        except TypeError:
            if (explained := _explained(self.body, kwargs)) is None:
                raise
            raise explained from None
        return run(begun)

    def __get__(self, instance: object, owner: type | None = None) -> BoundVerb[P, T]:
        # `pydoc` shows signatures of functions, of methods, and only of those other descriptors that have `__get__`.
        return self

    def __repr__(self) -> str:
        method = cast(MethodType, self.body)
        return f"<verb {method.__qualname__} of {method.__self__!r}>"

    def __reduce__(self) -> tuple[object, ...]:
        method = cast(MethodType, self.body)
        return getattr, (method.__self__, method.__name__)

    aio: Final = _AwaitableForm()

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.body.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self.body)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # __name__, __qualname__ and __self__ are the method's.
            return getattr(self.body, name)


# Notebooks would show the signature of this method below that of the verb. They show none if `inspect` finds none.
vars(BoundVerb)["__call__"].__signature__ = False


_new: Any = object.__new__


class Verb(Generic[S, P, T]):
    """The descriptor behind `verb`."""

    def __init__(self, steps: Callable[Concatenate[S, P], Steps[T]]) -> None:
        self._steps = steps
        functools.update_wrapper(cast(Any, self), steps)

    def __call__(self, instance: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the verb on that object, as ``Queue.dequeue(orders, db)``."""
        return run(self._steps(instance, *args, **kwargs))

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self._steps)

    @overload
    def __get__(self, instance: None, owner: object) -> Verb[Any, ..., Any]: ...
    @overload
    def __get__(self, instance: S, owner: object) -> BoundVerb[P, T]: ...
    def __get__(self, instance: object, owner: object) -> Any:
        if instance is None:
            return self
        bound = _new(BoundVerb)
        bound.body = MethodType(self._steps, instance)
        return bound


def verb(steps: Callable[Concatenate[S, P], Steps[T]]) -> Verb[S, P, T]:
    """Turn a method that returns steps, such as an ``async def``, into a verb.

    A generator that yields futures is a body too. This is deprecated since 0.3.0.
    """
    if inspect.isgeneratorfunction(steps):
        tell_of_generator(steps.__qualname__, stacklevel=2)
        steps = cast(Any, types.coroutine(steps))
    return Verb(steps)


def steps_of(verb: Any, *args: Any, **terms: Any) -> Steps[Any]:
    """Return the steps of a verb that a layer calls with its caller's arguments; for layers.

    Raises:
        TypeError: the verb has no such argument. The message names the verb that has it, as if the caller had called.
    """
    try:
        return cast(Steps[Any], getattr(verb, "body", verb.steps)(*args, **terms))
    except TypeError:
        if (explained := _explained(getattr(verb, "body", verb.steps), terms)) is None:
            raise
        raise explained from None


ELSEWHERE: dict[str, dict[str, str]] = {}
"""For each verb, the parameters that another one has, and which one. Whoever knows all verbs fills it."""


def _explained(steps: Callable[..., Any], given: Mapping[str, object]) -> TypeError | None:
    """Return the error of a call with an argument that another verb has, and the message names that one.

    None: the verb has all arguments that were `given` by name, or no other verb has them.
    """
    method = cast(MethodType, steps)
    verb = method.__name__
    parameters = inspect.signature(method).parameters
    for name in given:
        elsewhere = ELSEWHERE.get(verb.removesuffix("_many"), {}).get(name)
        if name not in parameters and elsewhere is not None:
            return TypeError(
                f"{method.__qualname__}() got an unexpected keyword argument {name!r}: {elsewhere.format(verb=verb)}"
                " has it."
            )
    return None


def _signature(steps: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the call. It returns the result of the steps."""
    signature = inspect.signature(steps)
    returned = signature.return_annotation  # a string, since annotations are not evaluated
    if isinstance(returned, str) and returned.startswith("Steps["):
        signature = signature.replace(return_annotation=returned[len("Steps[") : -1])
    return signature
