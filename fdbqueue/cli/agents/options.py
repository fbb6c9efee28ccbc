"""Arguments and options of the commands that speak to an agent server."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated

import typer

from fdbqueue.agents import AgentClient
from fdbqueue.agents.words import DEFAULT, MAX_TYPE

AgentType = Annotated[int, typer.Argument(metavar="TYPE", min=0, max=MAX_TYPE, help="The agent type, a number.")]
At = Annotated[
    str, typer.Option("--at", envvar="FDBQUEUE_AGENTS", metavar="HOST:PORT", help="The server; or unix:PATH.")
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, help="Seconds for each answer of the server.")]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="Speak TLS; the authority that signed the server's certificate."),
]
CertFile = Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="This client's certificate, for TLS.")]
KeyFile = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The key of the certificate.")]
SERVER = DEFAULT
SECONDS = 60.0


def client_of(at: str, timeout: float, ca: Path | None, cert: Path | None, key: Path | None) -> AgentClient:
    """Return the client that the options describe."""
    if ca is None and (cert or key):
        raise typer.BadParameter("a certificate is for TLS, which needs --ca too", param_hint="--cert")
    tls = None
    if ca is not None:
        try:
            tls = ssl.create_default_context(cafile=str(ca))
            if cert is not None:
                tls.load_cert_chain(cert, key)
        except OSError as error:
            raise typer.BadParameter(f"{error}: {ca}, {cert} or {key} can't be used", param_hint="--ca") from error
    try:
        return AgentClient(at, tls=tls, timeout=timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from error
