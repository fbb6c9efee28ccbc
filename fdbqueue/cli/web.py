"""``fdbqueue web``."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.errors import system_errors
from fdbqueue.cli.metrics import beside, check_free, listening
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import Url, named
from fdbqueue.cli.stopping import OnSignals
from fdbqueue.engine.errors import ANSWER_SECONDS

TOKEN_VARIABLE = "FDBQUEUE_WEB_TOKEN"
DEFAULT = "127.0.0.1:8080"


def web(
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to listen. Port 0: any that is free.")
    ] = DEFAULT,
    url: Url = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Show buttons that change items, sessions and queues.")
    ] = False,
    within: Annotated[
        str | None, typer.Option("--within", metavar="NAME", help="Only queues below this name, or key tuple as JSON.")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Another name under which the page is served. May be repeated."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help=f"The token to log in with; or in {TOKEN_VARIABLE}."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve the queues' figures to Prometheus there."),
    ] = None,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="Certificate of the server: TLS.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key.")] = None,
) -> None:
    """Serve a page about all queues until SIGTERM or Ctrl-C. It changes nothing unless --allow-changes is given.

    It listens on the loopback interface. Another address needs a token, and --cert and --key unless a server in
    front of it speaks TLS. It needs the extra `web`.

    Example: fdbqueue web --listen 127.0.0.1:8080 --allow-changes
    """
    try:
        from fdbqueue.web import AdminApp
    except ModuleNotFoundError as missing:
        typer.echo(f"Error: {missing}. The page needs more packages: pip install 'fdbqueue[web]'", err=True)
        raise typer.Exit(errors.USAGE) from missing
    address, port = _address(listen)
    if (cert is None) != (key is None):
        raise typer.BadParameter("TLS needs both --cert and --key", param_hint="--cert / --key")
    with system_errors():
        token = _token(token_file)
        for path in filter(None, (cert, key)):
            path.read_bytes()
    names = {"localhost", "127.0.0.1", "[::1]", *(host or ())}
    if not _is_loopback(address):
        if token is None:
            raise typer.BadParameter(
                f"{address} can be reached by other machines: give --token-file, or set {TOKEN_VARIABLE}",
                param_hint="--listen",
            )
        names.add(f"[{address}]" if ":" in address else address)
    with listening("the page", listen, "--listen"):
        check_free(address, port)
    below = None if within is None else named(within, "--within")
    with system_errors(), opened(url, patience=ANSWER_SECONDS) as db:
        app = AdminApp(db, allow_changes=allow_changes, hosts=names, token=token, within=below)
        with beside(metrics, db):
            _serve(app, address, port, None if cert is None else (cert, key))


def _serve(app: Any, address: str, port: int, tls: tuple[Any, Any] | None) -> None:
    from fdbqueue.base.http import Server, bound

    with listening("the page", f"{address}:{port}", "--listen"):
        listener = bound(address, port)
    shown = f"[{address}]" if ":" in address else address
    told = (
        f"The page is at {'http' if tls is None else 'https'}://{shown}:{listener.getsockname()[1]}/. Ctrl-C ends it."
    )
    with listener:
        server = Server(app, lambda: typer.echo(told, err=True), tls)
        # uvicorn raises a signal again after its clean end.
        with OnSignals(lambda: setattr(server, "should_exit", True)):
            server.run([listener])
    if not server.started:
        raise typer.Exit(errors.ENGINE)  # uvicorn has said why


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT, as in {DEFAULT}", param_hint="--listen")
    return host.strip("[]"), int(port)


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _token(path: Path | None) -> str | None:
    token = os.environ.get(TOKEN_VARIABLE) or None if path is None else path.read_text().strip()
    if token is not None and len(token) < 16:
        raise typer.BadParameter(
            "a token has at least 16 characters; Python's secrets.token_urlsafe() makes one",
            param_hint="--token-file" if path else TOKEN_VARIABLE,
        )
    return token
