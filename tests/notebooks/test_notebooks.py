"""Every notebook runs from the first cell to the last, and is kept with the outputs of such a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from examples.demo.java import why_no_spark

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
LARGEST_BYTES = 400_000


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def run_to_its_end(path: Path, folder: Path) -> None:
    notebook = read(path)
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}})

    client.execute()

    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


def of_spark(path: Path) -> bool:
    return "pyspark" in path.read_text()


@pytest.mark.slow
@pytest.mark.engines("memory", "cluster")  # an embedded folder differs in nothing that a notebook shows
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if not of_spark(path)], ids=lambda path: path.stem)
def test_notebook_runs_to_its_end(path: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDBQUEUE_URL", url)
    run_to_its_end(path, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly  # by day the demo and the first block of the guide to Spark start a Spark of their own
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if of_spark(path)], ids=lambda path: path.stem)
def test_notebook_of_spark_runs_to_its_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = why_no_spark()
    if missing:
        pytest.skip(f"Spark can't run here, since {missing}")
    monkeypatch.setenv("FLIGHTS", "2000")
    run_to_its_end(path, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_with_the_outputs_of_one_run(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "make notebooks"
    assert outputs
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert re.findall(r"/(?:tmp|home|root|work)/\w+", path.read_text()) == [], "it names a folder of a machine"
    assert path.stat().st_size < LARGEST_BYTES


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 7
