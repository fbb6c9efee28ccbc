"""``fdbqueue metrics``."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fdbqueue.cli.errors import ENGINE
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import Url
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.stopping import OnSignals
from fdbqueue.engine.api import Database

if TYPE_CHECKING:
    from fdbqueue.observe.serving import MetricsServer

LOOK_SECONDS = 0.2
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include", "-i", metavar="PATTERN", help="Only queues like this, as 'shop-*'. Several: any of them."
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", "-x", metavar="PATTERN", help="No queues like this. Several: none of them."),
]


def metrics(
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where Prometheus finds them.")
    ] = "127.0.0.1:9464",
    include: Include = None,
    exclude: Exclude = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=1, help="Most queues of a scrape. fdbqueue_queues_left_out counts the others."
        ),
    ] = 1_000,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")] = False,
    url: Url = None,
) -> None:
    """Serve the figures of all registered queues to Prometheus until SIGTERM or Ctrl-C.

    Each scrape reads a bounded number of rows of each queue, however long it is, and of as many queues as `--limit`
    says. It needs the extra `metrics`. It tells names and numbers to everybody who can reach the port.

    Example: fdbqueue metrics --include 'shop-*'
    """
    server = metrics_server(listen, include=include or (), exclude=exclude or (), limit=limit)
    with opened(url) as db:
        if once:
            write_lines([server.text(db)])
            _tell_unmatched(db, include)
            return
        with ExitStack() as serving:
            with listening("metrics", server.address, "--listen"):
                serving.enter_context(server.serving(db))
            stopping: list[bool] = []
            with OnSignals(lambda: stopping.append(True)):
                typer.echo(f"Serving metrics at http://{server.address}/metrics.", err=True)
                _tell_unmatched(db, include)
                while not stopping:  # no event: the signal's handler runs in the thread that would wait for it
                    time.sleep(LOOK_SECONDS)


def _tell_unmatched(db: Database, include: list[str] | None) -> None:
    """Say which patterns fit no queue yet."""
    from fdbqueue.observe.figures import Wanted, queue_names

    if include:
        for sentence in Wanted(include).unmatched(queue_names(db)):
            typer.echo(sentence, err=True)


@contextmanager
def beside(listen: str | None, db: Database) -> Iterator[None]:
    """Serve metrics while the body runs, and say where; None: serve none."""
    if listen is None:
        yield
        return
    with ExitStack() as serving:
        with listening("metrics", listen, "--metrics"):
            server = serving.enter_context(metrics_server(listen).serving(db))
        typer.echo(f"Serving metrics at http://{server.address}/metrics.", err=True)
        yield


@contextmanager
def listening(what: str, address: str, option: str) -> Iterator[None]:
    """End the command with a sentence if it can't listen at an address that an option gives."""
    try:
        yield
    except OSError as error:
        told = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        typer.echo(f"Error: {what} can't be served at {address}: {told}. Give another {option}.", err=True)
        raise typer.Exit(ENGINE) from error


def check_free(host: str, port: int) -> None:
    """Bind to an address and let it go again, to say under which option it was given if another program has it.

    Raises:
        OSError: another program listens there, or this one may not.
    """
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(where)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise


def metrics_server(listen: str, **terms: Any) -> MetricsServer:
    """Return a server of metrics.

    Raises:
        typer.BadParameter: the extra is not installed, or an argument is wrong.
    """
    try:
        from fdbqueue.observe.serving import MetricsServer
    except ImportError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        return MetricsServer(listen, **terms)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
