"""The helpers for notebooks: keys as a table, conflicts as a drawing, a page that refreshes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fdbqueue import Queue, notebook
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases


def frames(figure: Any) -> int:
    """How many boxes of a drawing have the frame of a conflict."""
    return sum(box.get_linewidth() > 1 for box in figure.axes[0].patches)


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_keys_are_shown_as_tuples_with_counters_and_payloads(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue_many(db, ["a", "b", "c"])
    shown = notebook.keys(db, queue)

    assert [shown.rows[0][1], next(stored for _, stored in shown.rows if stored == "b'a'")] == ["3", "b'a'"]
    assert "'count', 'enqueued'" in str(shown.rows[0][0])
    assert len(notebook.keys(db, queue, limit=2).rows) == 2
    assert notebook.keys(db, queue, limit=2).more


def test_two_consumers_conflict_over_one_item_and_two_producers_do_not(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    first, second = db.create_transaction(), db.create_transaction()
    queue.dequeue(first)
    queue.dequeue(second)
    drawn = notebook.conflicts(queue, Ann=first, Bob=second)
    assert frames(drawn) == 2
    assert {"reads", "writes", "both"} == set(words(drawn))

    first, second = db.create_transaction(), db.create_transaction()
    queue.enqueue(first, "b")
    queue.enqueue(second, "c")
    drawn = notebook.conflicts(queue, Ann=first, Bob=second)
    assert frames(drawn) == 0
    assert set(words(drawn)) == {"writes"}
    assert drawn._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_a_drawing_changes_nothing_about_the_transactions(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")
    queue.enqueue(db, "a")
    first = db.create_transaction()
    queue.dequeue(first)
    notebook.conflicts(queue, Ann=first)
    queue.enqueue(db, "b")
    first.commit().wait()

    item = queue.peek(db)
    assert item is not None
    assert item.value == "b"


def test_a_page_is_refreshed_while_other_tasks_go_on(db: Any, space: Subspace) -> None:
    queue = Queue(space, codec="str")

    async def main() -> Any:
        showing = asyncio.create_task(notebook.live(db, queue, seconds=0.05, every=0.01))
        await queue.enqueue.aio(db, "a")
        return await showing

    page = asyncio.run(main())
    assert page.stats.available == 1
    assert len(page.history) >= 2


def test_the_seconds_of_a_live_page_begin_when_it_is_shown(
    db: Any, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def monotonic() -> float:
        nonlocal now
        now += 0.01
        return now

    def slow(page: Any, **_: Any) -> None:
        nonlocal now
        now += 3  # as the import of matplotlib

    monkeypatch.setattr(notebook, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr("IPython.display.display", slow)
    page = asyncio.run(notebook.live(db, Queue(space), seconds=0.05, every=0.01))
    assert len(page.history) >= 2


@pytest.mark.parametrize("wrong", [None, "db", 3])
def test_wrong_arguments_are_refused(db: Any, space: Subspace, wrong: Any) -> None:
    queue = Queue(space)
    with pytest.raises(TypeError):
        notebook.conflicts(queue, Ann=wrong)
    with pytest.raises(TypeError, match="Give open transactions"):
        notebook.conflicts(queue)
    with pytest.raises(TypeError, match="takes a transaction, not a database"):
        notebook.conflicts(queue, Ann=db)
    with pytest.raises(TypeError, match="A queue was expected"):
        notebook.keys(db, wrong)
    with pytest.raises(TypeError, match=r"give its leases\.queue"):
        notebook.keys(db, Leases(queue))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a database, not"):
        asyncio.run(notebook.live(wrong, queue))
    with pytest.raises(ValueError, match="more than 0"):
        asyncio.run(notebook.live(db, queue, seconds=0))
