"""Enqueue items whose positions or results the command prints, or that belong to a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from fdbqueue.cli.errors import BadValue
from fdbqueue.cli.grouping import held_open
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.records import ItemToEnqueue, Way, enqueue_records
from fdbqueue.cli.terms import ItemTerms
from fdbqueue.cli.waiting import print_results
from fdbqueue.errors import CodecError, ItemTooLarge
from fdbqueue.layers.groups import Groups
from fdbqueue.layers.leases import Leases
from fdbqueue.layers.results import Results
from fdbqueue.layers.sessions import Sessions


class Tracked:
    """Enqueues items and waits for them.

    Args:
        leases: the leases of the queue.
        sessions: the sessions that get the items; None: none.
        terms: the terms for records that do not have their own.
        more: other arguments of the enqueue: session and level.
        group: the name of their group; None: none.
        wait: how many seconds to wait for their ends; None: not at all.
        as_json: whether to print how each ended, in place of its result.
        tells: whether to print the position of each item, if the command does not wait for its result.
        is_plain: whether the items are values without terms. They are stored as by `Queue.enqueue`.
    """

    def __init__(
        self,
        db: Any,
        leases: Leases,
        sessions: Sessions | None,
        terms: ItemTerms,
        more: dict[str, Any],
        *,
        group: str | None,
        wait: float | None,
        as_json: bool,
        tells: bool,
        is_plain: bool,
    ) -> None:
        self._db = db
        self._leases = leases
        self._terms = terms
        self._wait = wait
        self._as_json = as_json
        self._tells = tells
        source: Any = leases if sessions is None else sessions
        if wait is not None:
            source = Results(source)
        begin = None
        if group is not None:
            source = Groups(source)
            begin = partial(held_open, source, group)
            more = {**more, "group": group}
        self._way = Way(partial(source.enqueue.steps, **more), begin)
        if is_plain and source is leases:
            self._way = Way(lambda tr, value, **_: leases.queue.enqueue.steps(tr, value))
        self.code = 0
        """The exit code of the first item that ended without a result."""

    def enqueue(self, items: Iterable[Any]) -> Iterator[int]:
        """Enqueue values or records. Yield the number that is in after each commit, and then wait for these items."""
        records = (item if isinstance(item, ItemToEnqueue) else self._record(item) for item in items)
        for entered in enqueue_records(self._db, self._leases, records, self._terms, self._way):
            yield len(entered)
            if self._wait is None and self._tells:
                write_lines(b"%b\n" % one.text.encode() for one in entered)
            if self._wait is not None:
                completions = [completion.at(self._db) for completion in entered]
                code = print_results(completions, self._wait, as_json=self._as_json)
                self.code = self.code or code

    def _record(self, value: Any) -> ItemToEnqueue:
        try:
            return ItemToEnqueue("", len(self._leases.queue.encode(value)), value, ItemTerms())
        except (CodecError, ItemTooLarge) as error:
            raise BadValue(str(error)) from error
