"""The benchmarks' command: it runs, and what it writes is a page whose charts are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.benchmarks import page
from tests.benchmarks.harness import Contestant, Entrant, Sample, compare, for_seconds, heading, sweep

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


def charts_of(folder: Path) -> list[ET.Element]:
    """Return the charts that a page shows, in its order."""
    found = re.findall(r"^!\[.*\]\((charts/.*\.svg)\)$", (folder / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(found) == sorted(f"charts/{path.name}" for path in folder.glob("charts/*"))
    return [ET.fromstring((folder / name).read_text()) for name in found]


def texts_of(chart: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in chart.iter(f"{SVG}text")]


def test_the_command_writes_a_page_with_a_table_and_a_chart_for_each_question(repository: Path, tmp_path: Path) -> None:
    done = run(repository, "scale_item_size", "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Benchmarks\n")
    assert text.index("## What this does not show") < text.index("## Where it ran") < text.index("## Larger items")
    assert "Skipped: the cluster's half" in text
    rows = re.findall(
        r"^\| (fdbqueue|persist-queue|litequeue|Huey's SQLite storage) \| 10 \|", text, flags=re.MULTILINE
    )
    assert len(rows) == 4
    assert "fdbqueue" in texts_of(charts_of(tmp_path)[-1])


def test_a_benchmark_by_itself_prints_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    heading("Things")
    ratios = compare(
        "how fast", [Contestant("slow", lambda: Sample(1, 2.0)), Contestant("fast", lambda: Sample(4, 2.0))]
    )
    printed = capsys.readouterr().out
    assert ratios == {"slow": 1.0, "fast": 4.0}
    assert "| fast | 2 | 2 | 0.0000 | 4.00 |  |" in printed
    assert "svg" not in printed


def test_questions_of_the_same_name_have_charts_of_their_own(tmp_path: Path) -> None:
    with page.writing(tmp_path):
        for speed in (1, 2):
            compare("the same", [Contestant("one", lambda speed=speed: Sample(speed, 1.0))])  # type: ignore[misc]
    assert len(charts_of(tmp_path)) == 2


def test_a_chart_names_its_lines_and_takes_the_readers_colour_scheme(tmp_path: Path) -> None:
    def run(speed: int, point: int) -> Sample:
        return Sample(1_000 * speed * point, 1.0, [0.001 * point], conflicts=point if speed == 3 else 0)

    with page.writing(tmp_path):
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
    assert "## Before" in (tmp_path / "README.md").read_text()


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
