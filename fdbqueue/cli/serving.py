"""``fdbqueue metrics`` and ``fdbqueue web``: figures and a page by HTTP."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdbqueue.base.arguments import HostPort, host_and_port, is_loopback
from fdbqueue.cli import errors
from fdbqueue.cli.errors import ENGINE, OnSignals, end, end_if, refuse, refuse_if, refused, system_errors, tell
from fdbqueue.cli.opening import name_below, opened
from fdbqueue.cli.output import write_lines
from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import ANSWER_SECONDS

if TYPE_CHECKING:
    from fdbqueue.observe.serving import MetricsServer


LOOK_SECONDS = 0.2


def metrics(
    listen: str = "127.0.0.1:9464",
    include: list[str] | None = None,
    exclude: list[str] | None = None,
    limit: int = 1_000,
    once: bool = False,
    url: str | None = None,
) -> None:
    """Serve the figures of all registered queues to Prometheus until SIGTERM or Ctrl-C.

    Each scrape reads a bounded number of rows of each queue, however long it is, and of as many queues as `--limit`
    says. It needs the extra `metrics`. It tells names and numbers to everybody who can reach the port.

    Args:
        listen (-l, HOST:PORT): Where Prometheus finds them.
        limit (-n, min=1): Most queues of a scrape. fdbqueue_queues_left_out counts the others.
        once: Print the metrics once and exit.

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
                tell(f"Serving metrics at http://{server.address}/metrics.")
                _tell_unmatched(db, include)
                while not stopping:  # no event: the signal's handler runs in the thread that would wait for it
                    time.sleep(LOOK_SECONDS)


def _tell_unmatched(db: Database, include: list[str] | None) -> None:
    """Say which patterns fit no queue yet."""
    from fdbqueue.observe.figures import Wanted, queue_names

    if include:
        for sentence in Wanted(include).unmatched(queue_names(db)):
            tell(sentence)


@contextmanager
def beside(listen: str | None, db: Database) -> Iterator[None]:
    """Serve metrics while the body runs, and say where; None: serve none."""
    if listen is None:
        yield
        return
    with ExitStack() as serving:
        with listening("metrics", listen, "--metrics"):
            server = serving.enter_context(metrics_server(listen).serving(db))
        tell(f"Serving metrics at http://{server.address}/metrics.")
        yield


@contextmanager
def listening(what: str, address: str, option: str) -> Iterator[None]:
    """End the command with a sentence if it can't listen at an address that an option gives."""
    try:
        yield
    except OSError as error:
        told = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        tell(f"Error: {what} can't be served at {address}: {told}. Give another {option}.")
        end(ENGINE)


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
    with refused(None, (ImportError, ValueError)):
        from fdbqueue.observe.serving import MetricsServer

        return MetricsServer(listen, **terms)


TOKEN_VARIABLE = "FDBQUEUE_WEB_TOKEN"
DEFAULT = "127.0.0.1:8080"


def web(
    listen: str = DEFAULT,
    url: str | None = None,
    allow_changes: bool = False,
    within: str | None = None,
    host: list[str] | None = None,
    token_file: Path | None = None,
    metrics: str | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve a page about all queues until SIGTERM or Ctrl-C. It changes nothing unless --allow-changes is given.

    It listens on the loopback interface. Another address needs a token, and --cert and --key unless a server in
    front of it speaks TLS. It needs the extra `web`.

    Args:
        listen (-l, HOST:PORT): Where to listen. Port 0: any that is free.
        allow_changes: Show buttons that change items, sessions and queues.
        host (NAME): Another name under which the page is served. May be repeated.
        token_file (FILE): The token to log in with; or in FDBQUEUE_WEB_TOKEN.
        cert (FILE): Certificate of the server: TLS.
        key (FILE): Its key.

    Example: fdbqueue web --listen 127.0.0.1:8080 --allow-changes
    """
    try:
        from fdbqueue.web import AdminApp
    except ModuleNotFoundError as missing:
        tell(f"Error: {missing}. The page needs more packages: pip install 'fdbqueue[web]'")
        end(errors.USAGE)
    where = _address(listen)
    refuse_if((cert is None) != (key is None), "TLS needs both --cert and --key", "--cert / --key")
    with system_errors():
        token = _token(token_file)
        for path in filter(None, (cert, key)):
            path.read_bytes()
    names = {"localhost", "127.0.0.1", "[::1]", *(host or ())}
    if not is_loopback(where.host):
        if token is None:
            refuse(
                f"{where.host} can be reached by other machines: give --token-file, or set {TOKEN_VARIABLE}", "--listen"
            )
        names.add(str(where).rpartition(":")[0])
    with listening("the page", listen, "--listen"):
        check_free(*where)
    below = name_below(within, "--within")
    with system_errors(), opened(url, patience=ANSWER_SECONDS) as db:
        app = AdminApp(db, allow_changes=allow_changes, hosts=names, token=token, within=below)
        with beside(metrics, db):
            _serve(app, where, None if cert is None or key is None else (cert, key))


def _serve(app: object, where: HostPort, tls: tuple[Path, Path] | None) -> None:
    from fdbqueue.base.http import Server, bound

    with listening("the page", f"{where.host}:{where.port}", "--listen"):
        listener = bound(*where)
    shown = where._replace(port=listener.getsockname()[1])
    told = f"The page is at {'http' if tls is None else 'https'}://{shown}/. Ctrl-C ends it."
    with listener:
        server = Server(app, lambda: tell(told), tls)
        # uvicorn raises a signal again after its clean end.
        with OnSignals(lambda: setattr(server, "should_exit", True)):
            server.run([listener])
    end_if(not server.started, errors.ENGINE)  # uvicorn has said why


def _address(listen: str) -> HostPort:
    found = host_and_port(listen)
    if found is None:
        refuse(f"{listen!r} is not HOST:PORT, as in {DEFAULT}", "--listen")
    return found


def _token(path: Path | None) -> str | None:
    token = os.environ.get(TOKEN_VARIABLE) or None if path is None else path.read_text().strip()
    refuse_if(
        token is not None and len(token) < 16,
        "a token has at least 16 characters; Python's secrets.token_urlsafe() makes one",
        "--token-file" if path else TOKEN_VARIABLE,
    )
    return token
