"""`Handle`: a call that was enqueued, to wait for its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fdbqueue import Position
from fdbqueue.lowlevel import Database, Named, Steps, Transaction, verb

from ..results import Completion, Outcome

if TYPE_CHECKING:
    from ._task import BaseTask

R = TypeVar("R", covariant=True)


class Handle(Named, Generic[R]):
    """A call that was enqueued. In any process `BaseTask.handle` makes it from ``str(handle)``."""

    __slots__ = ("_completion", "_db", "is_new", "position", "task")

    def __init__(
        self,
        task: BaseTask[..., R],
        position: Position,
        db: Any,
        *,
        is_new: bool,
        completion: Completion[Any] | None = None,
    ) -> None:
        self.task = task
        self.position = position
        """The call's item."""
        self.is_new = is_new
        """Whether this enqueue has added it. Otherwise a call was there that is equal, and the task is unique."""
        self._db = db
        self._completion = task.lane.completion(position) if completion is None else completion

    def __repr__(self) -> str:
        return f"Handle({self.task.name}, {self.position.text!r})"

    def __str__(self) -> str:
        return self.position.text

    @verb
    def result(self, timeout: float | None = None) -> Steps[R]:
        """Wait until the call has ended, and return the task's result. ``await handle`` does the same.

        If the call was enqueued in your own transaction, commit that first.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            CompletionError: it ended without a result: as a dead letter, or since its time to live was over.
            TimeoutError: the time is over. The call is not affected.
            CodecError: the result is not of the task's return annotation.
            ValueError: no result is kept, or there is no database to wait in.

        *Conflicts:* none. *Cost:* one read and a watch: once, in general.
        """
        self._check_kept()
        if self._db is None:
            raise ValueError(f"{self!r} has no database to wait in: task.handle(db, str(handle)) gives it one.")
        stored = yield from self._completion.at(self._db).wait.steps(timeout)
        return cast(R, self.task.arguments.decode_result(stored))

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result.aio().__await__()

    @verb
    def outcome(self, tr: Transaction | Database) -> Steps[Outcome[Any] | None]:
        """Return how the call ended, without waiting; None if it has not ended yet.

        Raises:
            CompletionError: there is no record of it. ValueError: no result is kept.

        *Conflicts:* in a transaction, with the end of the call. *Cost:* one read.
        """
        self._check_kept()
        return (yield from self._completion.outcome.steps(tr))

    def _check_kept(self) -> None:
        if self.task.options.keep_result is None and self.task._terms.keep_result is None:
            raise ValueError(
                f"The task {self.task.name!r} keeps no results, so its end can't be waited for. Say how many seconds"
                " they are kept: @app.task(keep_result=600)."
            )
