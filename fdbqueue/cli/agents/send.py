"""``fdbqueue agents send``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fdbqueue.cli.agents.options import (
    SECONDS,
    SERVER,
    AgentType,
    At,
    CaFile,
    CertFile,
    KeyFile,
    Timeout,
    client_of,
)
from fdbqueue.cli.errors import system_errors
from fdbqueue.cli.input import read_some

IN_MEMORY_BYTES = 8_000_000


def send(
    type: AgentType,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The data; default: standard input.")] = None,
    at: At = SERVER,
    timeout: Timeout = SECONDS,
    ca: CaFile = None,
    cert: CertFile = None,
    key: KeyFile = None,
) -> None:
    """Send data to any agent of a type. If the command exits with 0, the data is in the queue."""
    client = client_of(at, timeout, ca, cert, key)
    with system_errors():
        if file is not None:
            with file.open("rb") as data:
                client.send(type, data)
            return
        # The size is said before the data, and a pipe does not tell it.
        with tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as kept:
            while some := read_some(sys.stdin.buffer):
                kept.write(some)
            kept.seek(0)
            client.send(type, kept)  # type: ignore[arg-type]
