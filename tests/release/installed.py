"""Runs last in a fresh environment: the tests before it imported the library from the installed wheel."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import fdbqueue.layers  # noqa: F401


def test_every_module_of_the_library_comes_from_the_installed_wheel() -> None:
    packages = Path(sysconfig.get_paths()["purelib"])
    files = {name: file for name, module in sys.modules.items() if (file := getattr(module, "__file__", None))}
    ours = {name: Path(file) for name, file in files.items() if name.split(".")[0] in ("fdbqueue", "layers")}
    assert len(ours) > 100
    assert {name: file for name, file in ours.items() if not file.is_relative_to(packages)} == {}
