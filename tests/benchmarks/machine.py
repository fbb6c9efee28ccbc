"""The machine and the versions that figures come from."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import fdbqueue

PACKAGES = (
    "fdbqueue",
    "lmdb",
    "foundationdb",
    "pyspark",
    "pyarrow",
    "persist-queue",
    "litequeue",
    "huey",
    "psycopg",
    "redis",
)


PROGRAMS = {"Java": ("java", "--version"), "Redis": ("redis-server", "--version"), "PostgreSQL": ("psql", "--version")}
"""Commands that print a version."""


def described() -> str:
    """Return the machine and the versions that matter most, in a line."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES[:4])
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}"


def facts() -> list[tuple[str, str]]:
    """Return what there is to know, as names and values."""
    return [
        ("processor", f"{_processor()}, {os.cpu_count()} cores"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("load before the run", f"{os.getloadavg()[0]:.2f}"),
        ("Python", platform.python_version()),
        *((name, version(name)) for name in PACKAGES),
        ("SQLite", sqlite3.sqlite_version),
        *((name, _answer(command)) for name, command in PROGRAMS.items()),
    ]


def cluster_facts(url: str) -> list[tuple[str, str]]:
    """Return what a cluster says about itself."""
    with fdbqueue.open(url) as db:
        status = json.loads(db[b"\xff\xff/status/json"] or b"{}")["cluster"]
    processes = status["processes"].values()
    kinds = status["configuration"]
    versions = ", ".join(sorted({process["version"] for process in processes}))
    return [
        ("cluster", f"FoundationDB {versions}, processes: {len(processes)}, storage engine {kinds['storage_engine']}"),
        ("redundancy", kinds["redundancy_mode"]),
    ]


def version(package: str) -> str:
    """Return a package's version."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


def _answer(command: Sequence[str]) -> str:
    """Return the first line that a command prints."""
    try:
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return "absent"
    return (printed.splitlines() or ["absent"])[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
