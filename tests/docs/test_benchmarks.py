"""The benchmarks' command: it runs, and what it writes is a page whose charts are there."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import bench_scale_consumers, page
from tests.benchmarks.contenders import Stand
from tests.benchmarks.harness import Contestant, Entrant, Sample, compare, for_seconds, heading, sweep
from tests.benchmarks.side_by_side import Group

SVG = "{http://www.w3.org/2000/svg}"


def run(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as `make bench` does, without a cluster."""
    environment = {name: value for name, value in os.environ.items() if "CLUSTER_FILE" not in name}
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def charts_in(page: Path) -> list[str]:
    return re.findall(r"^!\[.*\]\((charts/.*\.svg)\)$", page.read_text(), flags=re.MULTILINE)


def charts_of(folder: Path) -> list[ET.Element]:
    """Return the charts that the pages of figures show, in their order."""
    pages = sorted(path for path in folder.glob("*.md") if path.name != page.NAME)
    found = [name for path in pages for name in charts_in(path)]
    assert sorted(found) == sorted(f"charts/{path.name}" for path in folder.glob("charts/*"))
    assert set(charts_in(folder / page.NAME)) <= set(found)
    return [ET.fromstring((folder / name).read_text()) for name in found]


def texts_of(chart: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in chart.iter(f"{SVG}text")]


@pytest.mark.slow
def test_the_command_writes_a_page_with_a_table_and_a_chart_for_each_question(repository: Path, tmp_path: Path) -> None:
    done = run(repository, "scale_item_size", "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "README.md").read_text()
    assert front.startswith("# Benchmarks\n")
    assert (
        front.index("## What do large items cost?") < front.index("## All pages") < front.index("## What this does not")
    )
    assert sorted(re.findall(r"^- \[.*\]\((.*)\)$", front, flags=re.MULTILINE)) == [
        "larger-items.md",
        "where-it-ran.md",
    ]
    text = (tmp_path / "larger-items.md").read_text()
    assert "Skipped: the cluster's half" in text
    rows = re.findall(
        r"^\| (fdbqueue|persist-queue|litequeue|Huey's SQLite storage) \| 10 \|", text, flags=re.MULTILINE
    )
    assert len(rows) == 4
    assert "fdbqueue" in texts_of(charts_of(tmp_path)[-1])


@pytest.mark.slow
def test_a_page_leaves_no_chart_of_an_earlier_one(tmp_path: Path) -> None:
    for question in ("then", "now"):
        with page.writing(tmp_path):
            heading(f"All of {question}")
            compare(question, [Contestant("one", lambda: Sample(1, 1.0))])
    assert len(charts_of(tmp_path)) == 1
    assert [path.name for path in tmp_path.glob("charts/*")] == ["now.svg"]
    assert sorted(path.name for path in tmp_path.glob("*.md")) == ["README.md", "all-of-now.md"]


@pytest.mark.slow
def test_the_front_page_of_the_figures_is_short_and_links_all_others(repository: Path) -> None:
    folder = repository / "docs" / "benchmarks"
    front = (folder / "README.md").read_text()
    linked = re.findall(r"^- \[.*\]\((.*)\)$", front, flags=re.MULTILINE)
    assert sorted([*linked, "README.md"]) == sorted(
        path.relative_to(folder).as_posix() for path in folder.glob("**/*.md")
    )
    assert len(front.split()) <= 800
    assert len(charts_in(folder / "README.md")) == len(page.QUESTIONS)
    charts_of(folder)


def test_all_contestants_run_on_as_many_processes_with_the_same_fill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driven: list[tuple[str, int, int, int]] = []
    filled: dict[str, int] = {}

    class Driven:
        def __init__(self, name: str, most: int, taken: int) -> None:
            self.stand = Stand(name, "", "", processes=most)
            self.here = self
            self._taken = taken

        def fill(self, amount: int, value: bytes) -> None:
            filled[self.stand.name] = amount

        def clear(self) -> None:
            pass

        def consume(self, consumers: int, seconds: float, *, processes: int) -> Sample:
            driven.append((self.stand.name, processes, consumers, filled[self.stand.name]))
            return Sample(self._taken, 1.0)

    lines: Any = [Driven("ours", 4, 9_000), Driven("theirs", 4, 100), Driven("one process only", 1, 10)]
    groups = contextlib.nullcontext([Group("embedded", lines)])
    monkeypatch.setattr(bench_scale_consumers, "groups", lambda *, staged: groups)
    monkeypatch.setattr(bench_scale_consumers, "CONSUMERS", (1, 8))
    bench_scale_consumers.main()

    printed = capsys.readouterr().out
    assert "embedded, threads over 4 processes" in printed
    assert "embedded, threads of one process" in printed
    assert {(name, over) for name, over, *_ in driven} == {
        ("ours", 4),
        ("theirs", 4),
        *((line.stand.name, 1) for line in lines),
    }
    for over in (4, 1):
        fills = [fill for name, processes, _, fill in driven if processes == over and name == "theirs"]
        assert fills == [36_000] * len(fills), "as much as the others, of whom one took 9,000"


@pytest.mark.parametrize("name", ["PersistQueue", "LiteQueue", "Huey"])
def test_a_queue_on_sqlite_waits_for_the_disk(name: str, tmp_path: Path) -> None:
    from tests.benchmarks import contenders_sqlite

    contender = getattr(contenders_sqlite, name)(str(tmp_path))
    connections: dict[str, Any] = {
        "PersistQueue": lambda: contender.connections,
        "LiteQueue": lambda: (contender.local.queue.conn,),
        "Huey": lambda: (contender.storage.conn,),
    }
    contender.enqueue(b"x")
    for connection in connections[name]():
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] >= 2
    assert contender.dequeue() == b"x"
    contender.close()


def test_a_benchmark_by_itself_prints_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    heading("Things")
    ratios = compare(
        "how fast", [Contestant("slow", lambda: Sample(1, 2.0)), Contestant("fast", lambda: Sample(4, 2.0))]
    )
    printed = capsys.readouterr().out
    assert ratios == {"slow": 1.0, "fast": 4.0}
    assert "| fast | 2 | 2 | 4.00 |" in printed
    assert "svg" not in printed


def test_questions_of_the_same_name_have_charts_of_their_own(tmp_path: Path) -> None:
    with page.writing(tmp_path):
        heading("Both")
        for speed in (1, 2):
            compare("the same", [Contestant("one", lambda speed=speed: Sample(speed, 1.0))])  # type: ignore[misc]
    assert len(charts_of(tmp_path)) == 2


def test_a_chart_names_its_lines_and_takes_the_readers_colour_scheme(tmp_path: Path) -> None:
    def run(speed: int, point: int) -> Sample:
        return Sample(1_000 * speed * point, 1.0, [0.001 * point], conflicts=point if speed == 3 else 0)

    with page.writing(tmp_path):
        heading("Growth")
        sweep(
            "how it grows",
            "things",
            [1, 10],
            [Entrant("tame", lambda point: run(2, point)), Entrant("wild", lambda point: run(3, point))],
        )
    (chart,) = charts_of(tmp_path)
    texts = texts_of(chart)
    assert texts.count("tame") == texts.count("wild") == 3, "in each panel: rate, latency, conflicts"
    assert "0.0003" in texts, "what is written is not cut off as places are"
    drawing = next(tmp_path.glob("charts/*.svg")).read_text()
    assert "prefers-color-scheme: dark" in drawing
    assert "#010203" not in drawing


def test_a_page_keeps_what_was_printed_before_a_benchmark_failed(tmp_path: Path) -> None:
    def write() -> None:
        with page.writing(tmp_path):
            heading("Before")
            compare("nothing", [Contestant("nobody", lambda: Sample(1, 0.0))])

    with pytest.raises(ZeroDivisionError):
        write()
    assert (tmp_path / "before.md").read_text().startswith("# Before\n")


def test_an_unknown_benchmark_is_refused_and_the_others_are_named(repository: Path) -> None:
    done = run(repository, "scale_everything")
    assert done.returncode == 2
    assert "there is no benchmark scale_everything; there are scale_consumers," in done.stderr


def test_a_call_that_fails_in_one_thread_ends_them_all() -> None:
    calls = iter(range(1_000_000))

    def call() -> int:
        number = next(calls)
        if number == 50:
            raise KeyError(number)
        return number

    with pytest.raises((KeyError, RuntimeError)):
        for_seconds(4, 60.0, call)
