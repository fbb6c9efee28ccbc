"""``fdbqueue agents serve``."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from fdbqueue.agents import Access, AgentServer, Limits, Tls, queue_of_type
from fdbqueue.agents.access import types_in
from fdbqueue.agents.words import DEFAULT, MAX_SIZE
from fdbqueue.cli.errors import system_errors
from fdbqueue.cli.metrics import beside, listening
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import MaxAttempts, Url
from fdbqueue.cli.stopping import SIGNALS
from fdbqueue.layers.leases import Leases

USUAL = Limits()


def serve(
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to listen; or unix:PATH.")
    ] = DEFAULT,
    url: Url = None,
    types: Annotated[
        str | None, typer.Option("--types", metavar="5,7-9", help="Serve these agent types only; default: all.")
    ] = None,
    lock: Annotated[float, typer.Option("--lock", min=0.001, help="Seconds until unconfirmed data comes back.")] = 60.0,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds that a client waits for data before the server says Bye.")
    ] = 10.0,
    max_attempts: MaxAttempts = None,
    max_size: Annotated[
        int, typer.Option("--max-size", min=1, max=MAX_SIZE, help="The largest data that is taken, in bytes.")
    ] = USUAL.max_size,
    connections: Annotated[
        int, typer.Option("--connections", min=1, help="Clients at the same time.")
    ] = USUAL.connections,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, help="Bytes of data of all clients together in memory.")
    ] = USUAL.in_flight,
    line_bytes: Annotated[int, typer.Option("--line-bytes", min=80, help="Length of a line.")] = USUAL.line_bytes,
    line_seconds: Annotated[
        float, typer.Option("--line-seconds", min=0.001, help="Seconds that a client has for what it says next.")
    ] = USUAL.line_seconds,
    data_seconds: Annotated[
        float, typer.Option("--data-seconds", min=0.001, help="Seconds in which each 64 KiB of data must move.")
    ] = USUAL.data_seconds,
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE", help="Certificate of the server: TLS.")] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option("--client-ca", metavar="FILE", help="The authority that signs clients' certificates.")
    ] = None,
    access: Annotated[
        Path | None, typer.Option("--access", metavar="FILE", help="Which certificate may use which types, as TOML.")
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--let-everybody-in", help="Listen to other machines or users without TLS.")
    ] = False,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the port with other servers of this user that say so too.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve the queues' figures to Prometheus there."),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, help="Seconds for dialogs that are under way when the server stops.")
    ] = 10.0,
) -> None:
    """Serve queues over the SCS Queue protocol until SIGTERM or Ctrl-C. Agent type 5 is the queue ["agents", 5].

    It listens on the loopback interface or a unix socket. For other machines it needs --cert, --key and --client-ca.
    """
    files = (cert, key, client_ca)
    if any(files) and not all(files):
        raise typer.BadParameter("TLS needs --cert, --key and --client-ca", param_hint="--cert")
    served = None if types is None else types_in(types.split(","))
    limits = Limits(
        max_size=max_size,
        connections=connections,
        in_flight=in_flight,
        line_bytes=line_bytes,
        line_seconds=line_seconds,
        data_seconds=data_seconds,
    )

    def queue_of(type: int) -> Leases[bytes] | None:
        if served is not None and not any(type in some for some in served):
            return None
        return Leases(queue_of_type(type), max_attempts=max_attempts)

    with system_errors():
        rules = None if access is None else Access.read(access)
        with opened(url, create=True) as db:
            server = AgentServer(
                db,
                queue_of,
                lock=lock,
                wait=wait,
                limits=limits,
                access=rules,
                listen=listen,
                tls=Tls(cert, key, client_ca) if cert and key and client_ca else None,
                everybody=everybody,
                reuse_port=reuse_port,
            )
            with beside(metrics, db):
                asyncio.run(_serve(server, grace))


async def _serve(server: AgentServer, grace: float) -> None:
    stopped = asyncio.Event()
    loop: Any = asyncio.get_running_loop()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stopped.set)
    try:
        await server.start()
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise  # a file of --cert, --key or --client-ca, perhaps
        with listening("agents", server.address, "--listen"):
            raise
    typer.echo(f"Serving agents at {server.address}.", err=True)
    await stopped.wait()
    await server.stop(grace=grace)
