"""Every notebook runs from the first cell to the last, on every engine."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.spark.sessions import why_no_spark

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WITH_SPARK = [path for path in NOTEBOOKS if "spark" in path.stem]
TO_RUN = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark, pytest.mark.slow] if path in WITH_SPARK else [])
    for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", TO_RUN)
def test_notebook_runs_to_its_end(path: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = why_no_spark() if path in WITH_SPARK else None
    if missing:
        pytest.skip(f"Spark can't run here, since {missing}")
    monkeypatch.setenv("FDBQUEUE_URL", url)
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )

    client.execute()

    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]

    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs belong to who runs it, not to the source"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
