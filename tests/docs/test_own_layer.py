"""A layer that somebody else wrote needs nothing of the library but its public names and `fdbqueue.lowlevel`."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fdbqueue
from fdbqueue import lowlevel
from fdbqueue.reads.queue_rows import check_parts, page_parts

SOURCE = Path(__file__).parent / "stranger" / "rate_limited.py"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[ModuleType]:
    """The layer, loaded from a folder outside the tree."""
    spec = importlib.util.spec_from_file_location("rate_limited", shutil.copy(SOURCE, tmp_path))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["rate_limited"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["rate_limited"]
    for registry in (check_parts, page_parts):
        registry.parts.pop("rate limits")


def test_it_imports_public_names_only() -> None:
    modules = {
        node.module
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdbqueue")
    }
    assert modules == {"fdbqueue", "fdbqueue.lowlevel"}


def test_it_limits_the_rate_in_a_callers_transaction_and_on_its_own(db: Any, space: Any, stranger: Any) -> None:
    now = 1_000.0
    mails = stranger.RateLimited(fdbqueue.Queue(space, codec="str"), limit=2, seconds=60, clock=lambda: now)
    for name in ("Ann", "Bob", "Cy"):
        mails.enqueue(db, name)
    assert mails.take(db).value == "Ann"

    @fdbqueue.transactional
    def take(tr: Any) -> Any:
        return mails.take(tr)

    assert take(db).value == "Bob"
    assert mails.take(db) is None
    assert mails.opens_in(db) == pytest.approx(60)
    now += 61
    assert mails.opens_in(db) == 0
    assert asyncio.run(_take(mails, db)).value == "Cy"


async def _take(mails: Any, db: Any) -> Any:
    return await mails.take.aio(db)


def test_its_batcher_loses_nothing(db: Any, space: Any, stranger: Any) -> None:
    mails = stranger.RateLimited(fdbqueue.Queue(space, codec="str"), limit=1, seconds=1)
    threads = [threading.Thread(target=mails.enqueue_soon, args=(db, str(n))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {item.value for item in mails.queue.browse(db)} == {str(n) for n in range(20)}
    assert mails.commits <= 20


def test_it_tells_the_check_and_the_page(db: Any, space: Any, stranger: Any) -> None:
    queue = fdbqueue.Queue(space, codec="str")
    mails = stranger.RateLimited(queue, limit=2, seconds=60)
    mails.enqueue(db, "Ann")
    mails.take(db)
    assert "1 items taken in this period" in repr(queue.inspect(db))
    report = fdbqueue.check(db, queue)
    assert report.ok
    assert "periods" in report.looked_at
    db[stranger.own(queue.layout).pack(("window",))] = fdbqueue_tuple(1, 0)
    assert "A period has given out no item" in fdbqueue.check(db, queue).problems[0]
    queue.clear(db)
    assert not list(db.get_range_startswith(space.key()))


def fdbqueue_tuple(*parts: int) -> bytes:
    return bytes(lowlevel.fdb_tuple.pack(parts))


def test_the_contract_can_be_read() -> None:
    names = lowlevel.__all__
    assert len(names) <= 80
    assert len(set(names)) == len(names)
    text = Path(lowlevel.__file__).read_text()
    lines = [line.strip() for line in text[text.index("__all__") :].splitlines()[1:-1]]
    groups = [line for line in lines if line.startswith("#")]
    assert 5 <= len(groups) <= 10
    assert all("  # " in line for line in lines if line.startswith('"')), "each name has a line of its own"
