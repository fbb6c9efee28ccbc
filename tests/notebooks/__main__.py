"""Run the notebooks on ``memory:`` and keep their outputs: ``make notebooks``, or for some of them ``ARGS=01``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
TIMEOUT_SECONDS = 300


def executed(path: Path, folder: str) -> Any:
    """Return the notebook with the outputs of a run in `folder`."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=TIMEOUT_SECONDS, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)  # the times of a run would change every file
        if cell.cell_type == "code" and "pyspark" in path.read_text():  # Spark's progress, with folders of the machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: list[str]) -> None:
    """Run the notebooks whose names begin with one of `names`; all of them if there are none."""
    os.environ["FDBQUEUE_URL"] = "memory:"
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.name.startswith(tuple(names)):
            print(path.name)
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(executed(path, folder), path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])
