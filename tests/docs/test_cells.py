"""The README's blocks as notebook cells: each verb works in a running event loop, or its error names the other form."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue.observe
from tests.docs.test_readme import blocks, expected, needs_cluster, needs_spark

CELLS = [block for block in blocks("python") if not (needs_cluster(block) or needs_spark(block))]


@pytest.fixture(autouse=True)
def _telemetry_ends() -> Iterator[None]:
    """End the telemetry of a block that was refused before its end: it would go on in all tests of this process."""
    yield
    fdbqueue.observe.uninstrument()


def run_as_cell(block: str) -> str:
    """Run a block as Jupyter runs a cell: in the thread of a running event loop, where it may await.

    Return the message of the call that refused to block the loop; "" if none did.
    """

    async def main() -> None:
        cell = re.sub(r"\basyncio\.run\(", "await (", block)  # in a cell one awaits
        result = eval(compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "__main__"})
        if inspect.iscoroutine(result):
            await result

    try:
        asyncio.run(main())
    except RuntimeError as error:
        return str(error)
    return ""


def test_there_are_cells() -> None:
    assert len(CELLS) > 10


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_a_block_runs_as_a_cell_or_names_the_awaitable_form(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refused = run_as_cell(CELLS[number])

    if refused:
        assert ".aio" in refused
    else:
        assert capsys.readouterr().out == "".join(expected(CELLS[number]))
    blocking = [str(one.message) for one in told if "event loop" in str(one.message)]
    assert all(".aio" in one for one in blocking)
