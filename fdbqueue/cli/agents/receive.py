"""``fdbqueue agents receive``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fdbqueue.base.aside import written_aside
from fdbqueue.cli import errors
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
from fdbqueue.cli.options import CodecName
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.values import encode_json, to_json


def receive(
    type: AgentType,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Write the data there, and print the ID.")] = None,
    at: At = SERVER,
    timeout: Timeout = SECONDS,
    ca: CaFile = None,
    cert: CertFile = None,
    key: KeyFile = None,
) -> None:
    """Receive data that was sent to agents of a type, and lock it. Exits with 1 if there is none.

    FILE changes only when all data are there and locked. Without FILE it prints a JSON line with "id" and "data".
    Process the data, then run `fdbqueue agents confirm` with the ID. If the lock ends before, another agent gets the
    data.
    """
    client = client_of(at, timeout, ca, cert, key)
    if file is None:
        received = client.receive(type)
    else:
        with errors.system_errors(), written_aside(file) as into:
            received = client.receive(type, into=into)
            if received is None:
                raise typer.Exit(errors.EMPTY)
    if received is None:
        raise typer.Exit(errors.EMPTY)
    if file is None:
        shown = {"id": received.id, "data": to_json(received.data, CodecName.bytes)}
        write_lines([encode_json(shown).encode() + b"\n"])
    else:
        write_lines([b"%d\n" % received.id])
