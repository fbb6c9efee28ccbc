"""``fdbqueue agents confirm``."""

from __future__ import annotations

from typing import Annotated

import typer

from fdbqueue.agents.words import MAX_ID
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


def confirm(
    type: AgentType,
    id: Annotated[int, typer.Argument(metavar="ID", min=0, max=MAX_ID, help="The ID that was received.")],
    at: At = SERVER,
    timeout: Timeout = SECONDS,
    ca: CaFile = None,
    cert: CertFile = None,
    key: KeyFile = None,
) -> None:
    """Confirm that data is processed. It leaves the queue. Exits with 5 if its lock is over."""
    client_of(at, timeout, ca, cert, key).confirm(type, id)
