"""File systems of a test's own, in a file each; only where one may mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def make_disk(image: Path, *, size: str) -> None:
    """Make an ext4 file system in the file `image`; skip the test where that can't be done."""
    try:
        subprocess.run(["truncate", "-s", size, image], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of its own can be made here: {error}")


@contextlib.contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """Mount the file system in `image` at `place` for a while; skip the test where that may not be done."""
    place.mkdir(exist_ok=True)
    try:
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system of its own can be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
