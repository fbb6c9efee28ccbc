"""`CallGroup`: calls that are enqueued together, and what follows all of them."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fdbqueue.lowlevel import Database, Named, Transaction, is_database, verb

from ..groups import Group, Groups, GroupStats
from ..leases import FollowUp
from ._task import BaseTask, Call, Handle, checked

if TYPE_CHECKING:
    from ._tasks import Tasks

AT_ONCE = 100
"""How many calls one transaction enqueues, if they are given a database."""


class CallGroup(Named):
    """Calls to enqueue together. `Tasks.group` makes it.

    Args:
        app: the tasks.
        calls: the calls, of tasks in one queue.
        following: calls that are enqueued when all have ended.
    """

    def __init__(self, app: Tasks, calls: Sequence[Call[Any]], following: Sequence[Call[Any]] = ()) -> None:
        if not isinstance(cast(object, calls), list | tuple):
            raise TypeError(f"A group has a list of calls, as app.group([send.call('Ann')]), not {calls!r}.")
        self._app = app
        self._calls = list(calls)
        self._following = following
        for call in (*self._calls, *following):
            if not isinstance(cast(object, call), Call) or call.task.app is not app:
                raise TypeError(f"A group has calls of {app!r}, as app.group([send.call('Ann')]), not {call!r}.")
            if call.task.options.unique is not None:
                raise TypeError(f"{call.task!r} is unique, and an equal call may be there: enqueue it alone.")
        if not self._calls:
            raise TypeError("A group has at least one call, as app.group([send.call('Ann')]), not an empty list.")
        lanes = {id(call.task.lane): call.task.lane for call in self._calls}
        if len(lanes) != 1:
            raise TypeError(f"A group has calls, all of them in one queue, not in {len(lanes)}: {[*lanes.values()]}.")
        self._lane = next(iter(lanes.values()))

    def __repr__(self) -> str:
        return f"CallGroup({len(self._calls)} calls of {self._app!r})"

    def then(self, *following: Call[Any] | BaseTask[..., Any]) -> CallGroup:
        """Return this group, with what is enqueued when all of its calls have ended. A task gets no arguments."""
        calls = [one if isinstance(one, Call) else one.call() for one in checked(self._app, following)]
        return CallGroup(self._app, self._calls, [*self._following, *calls])

    @verb
    async def enqueue(self, tr: Transaction | Database, name: str = "") -> EnqueuedGroup:
        """Enqueue all calls, and return the group.

        Args:
            tr: a transaction, or a database. Given a database, it uses transactions of 100 calls.
            name: the group's name; "": a random one.

        Raises:
            GroupError: there is a group of this name already. ItemTooLarge: too many calls follow.

        *Conflicts:* and *Cost:* as `Groups.open`, and as `Groups.enqueue` for each call.
        """
        groups, name = Groups(self._lane), name or secrets.token_hex(8)
        then = [FollowUp(one.task.lane, one.value(), **one.all_terms()) for one in self._following]
        handles: list[Handle[Any]] = []
        db = tr if is_database(tr) else getattr(tr, "db", None)
        group = await groups.open.steps(tr, name, then=then)
        for start in range(0, len(self._calls), AT_ONCE):
            some = self._calls[start : start + AT_ONCE]
            handles += await self._lane.queue.transact(tr, partial(self._some, groups, group, some, db))
        await group.close.steps(tr)
        return EnqueuedGroup(group, handles)

    async def _some(
        self, groups: Groups, group: Group, calls: list[Call[Any]], db: Any, tr: Transaction
    ) -> list[Handle[Any]]:
        handles = []
        for call in calls:
            placed = await groups.enqueue.steps(tr, call.value(), group=group, **call.all_terms())
            handles.append(Handle(call.task, placed.position, db, is_new=True, completion=placed.completion))
        return handles


class EnqueuedGroup(Named):
    """A group of calls that was enqueued: wait for all of them, or await it."""

    def __init__(self, group: Group, handles: list[Handle[Any]]) -> None:
        self.group = group
        """The group, with `stats` and `cancel`."""
        self.handles = handles
        """The handles of its calls, in their order."""

    def __repr__(self) -> str:
        return f"EnqueuedGroup({self.group.name!r}, {len(self.handles)} calls)"

    @verb
    async def wait(self, timeout: float | None = None) -> GroupStats:
        """Wait until all calls have ended; as `Group.wait`."""
        return await self.group.wait.steps(timeout)

    def __await__(self) -> Generator[Any, Any, GroupStats]:
        return self.wait.aio().__await__()
