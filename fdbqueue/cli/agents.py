"""``fdbqueue agents``: queues for programs that speak the SCS Queue protocol."""

from __future__ import annotations

import asyncio
import errno
import signal
import ssl
import sys
import tempfile
from pathlib import Path

import typer

from fdbqueue.agents import Access, AgentClient, AgentServer, Limits, Tls, queue_of_type
from fdbqueue.agents.access import types_in
from fdbqueue.agents.watchdog import AgentEvent, AgentWatchdog
from fdbqueue.agents.words import DEFAULT, MAX_ID, MAX_SIZE, MAX_TYPE
from fdbqueue.base.aside import written_aside
from fdbqueue.base.position import Position
from fdbqueue.cli.errors import SIGNALS, OnSignals, end, end_if, refuse, refuse_if, refused, system_errors, tell
from fdbqueue.cli.helptext import Command, reflowed
from fdbqueue.cli.input import encode_json, read_some, to_json
from fdbqueue.cli.opening import CodecName, opened, opened_queue, store_policy, tell_if_paused
from fdbqueue.cli.options import command_of, growing_from
from fdbqueue.cli.output import present, print_json, print_or_tell, write_lines
from fdbqueue.cli.serving import beside, listening
from fdbqueue.layers.leases import Leases
from fdbqueue.stored.policies import Policy

SERVER = DEFAULT
SECONDS = 60.0
USUAL = Limits()
IN_MEMORY_BYTES = 8_000_000
"""How much of the data from standard input is kept in memory."""
UNCONFIRMED = 1
"""An item's last attempt failed, or its command could not run."""
ROWS = {
    "type": f"(argument, TYPE, min=0, max={MAX_TYPE}): The agent type, a number.",
    "run_type": f'(--type, min=0, max={MAX_TYPE}): The agent type, a number: the queue ["agents", TYPE].',
    "id": f"(argument, ID, min=0, max={MAX_ID}): The ID that was received.",
    "max_size": f"(min=1, max={MAX_SIZE}): The largest data that is taken, in bytes.",
    "at": "($FDBQUEUE_AGENTS, HOST:PORT): The server; or unix:PATH.",
    "timeout": "(min=0.001): Seconds for each answer of the server.",
    "ca": "(FILE): Speak TLS; the authority that signed the server's certificate.",
    "cert": "(FILE): This client's certificate, for TLS.",
    "key": "(FILE): The key of the certificate.",
}
"""The arguments and options of these commands."""
CONTEXT = {"allow_interspersed_args": False}
"""Options behind the command's name are the command's own."""


def client_of(at: str, timeout: float, ca: Path | None, cert: Path | None, key: Path | None) -> AgentClient:
    """Return the client that the options describe."""
    refuse_if(ca is None and (cert or key), "a certificate is for TLS, which needs --ca too", "--cert")
    tls = None
    if ca is not None:
        try:
            tls = ssl.create_default_context(cafile=str(ca))
            if cert is not None:
                tls.load_cert_chain(cert, key)
        except OSError as error:
            refuse(f"{error}: {ca}, {cert} or {key} can't be used", "--ca")
    with refused("--at"):
        return AgentClient(at, tls=tls, timeout=timeout)


def serve(
    listen: str = DEFAULT,
    url: str | None = None,
    types: str | None = None,
    lock: float = 60.0,
    wait: float = 10.0,
    max_attempts: int | None = None,
    max_size: int = USUAL.max_size,
    connections: int = USUAL.connections,
    in_flight: int = USUAL.in_flight,
    line_bytes: int = USUAL.line_bytes,
    line_seconds: float = USUAL.line_seconds,
    data_seconds: float = USUAL.data_seconds,
    cert: Path | None = None,
    key: Path | None = None,
    client_ca: Path | None = None,
    access: Path | None = None,
    everybody: bool = False,
    reuse_port: bool = False,
    metrics: str | None = None,
    grace: float = 10.0,
) -> None:
    """Serve queues over the SCS Queue protocol until SIGTERM or Ctrl-C. Agent type 5 is the queue ["agents", 5].

    It listens on the loopback interface or a unix socket. For other machines it needs --cert, --key and --client-ca.

    Args:
        listen (-l, HOST:PORT): Where to listen; or unix:PATH.
        types (5,7-9): Serve these agent types only; default: all.
        lock (min=0.001): Seconds until unconfirmed data comes back.
        wait (min=0): Seconds that a client waits for data before the server says Bye.
        connections (min=1): Clients at the same time.
        in_flight (min=1): Bytes of data of all clients together in memory.
        line_bytes (min=80): Length of a line.
        line_seconds (min=0.001): Seconds that a client has for what it says next.
        data_seconds (min=0.001): Seconds in which each 64 KiB of data must move.
        cert (FILE): Certificate of the server: TLS.
        key (FILE): Its key.
        client_ca (FILE): The authority that signs clients' certificates.
        access (FILE): Which certificate may use which types, as TOML.
        everybody (--let-everybody-in): Listen to other machines or users without TLS.
        reuse_port: Share the port with other servers of this user that say so too.
        grace (min=0): Seconds for dialogs that are under way when the server stops.
    """
    files = (cert, key, client_ca)
    refuse_if(any(files) and not all(files), "TLS needs --cert, --key and --client-ca", "--cert")
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
    loop = asyncio.get_running_loop()
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
    tell(f"Serving agents at {server.address}.")
    await stopped.wait()
    await server.stop(grace=grace)


def send(
    type: int,
    file: Path | None = None,
    at: str = SERVER,
    timeout: float = SECONDS,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Send data to any agent of a type. If the command exits with 0, the data is in the queue.

    Args:
        file (argument, FILE): The data; default: standard input.
    """
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


def receive(
    type: int,
    file: Path | None = None,
    at: str = SERVER,
    timeout: float = SECONDS,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Receive data that was sent to agents of a type, and lock it. Exits with 1 if there is none.

    FILE changes only when all data are there and locked. Without FILE it prints a JSON line with "id" and "data".
    Process the data, then run `fdbqueue agents confirm` with the ID. If the lock ends before, another agent gets the
    data.

    Args:
        file (argument, FILE): Write the data there, and print the ID.
    """
    client = client_of(at, timeout, ca, cert, key)
    if file is None:
        received = client.receive(type)
    else:
        with system_errors(), written_aside(file) as into:
            received = client.receive(type, into=into)
            end_if(received is None)
    if received is None:
        end()
    if file is None:
        print_json({"id": received.id, "data": to_json(received.data, CodecName.bytes)})
    else:
        write_lines([b"%d\n" % received.id])


def confirm(
    type: int,
    id: int,
    at: str = SERVER,
    timeout: float = SECONDS,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> None:
    """Confirm that data is processed. It leaves the queue. Exits with 5 if its lock is over."""
    client_of(at, timeout, ca, cert, key).confirm(type, id)


def run(
    command: list[str],
    type: int | None = None,
    queue: str | None = None,
    processes: int = 1,
    lock: float = 30.0,
    max_attempts: int | None = None,
    backoff: float | None = None,
    grace: float = 30.0,
    once: bool = False,
    create: bool = False,
    url: str | None = None,
) -> None:
    """Run a command for each item of a queue until SIGTERM or Ctrl-C: the data on its input, exit code 0 confirms.

    A command that fails or takes longer than its lock is started again later, for the same item. Prints a JSON line
    for everything that happens to an item, and a last one with totals. What the command prints goes to standard error.

    Args:
        command (argument, COMMAND): The program and its arguments.
        type (as run_type):
        queue (QUEUE): Any queue, in place of --type.
        processes (min=1): How many commands run at once.
        lock (min=0.001): Seconds that a command may take. Then it is killed.
        max_attempts (min=1): After so many failed attempts an item is a dead letter; stored if the queue has no such
            number. Default: the queue's, else 5.
        backoff (min=0): Seconds until the second attempt, doubled for each further one; stored in the same way.
            Default: the queue's, else 1.
        grace (min=0): Seconds that running commands have to end after SIGTERM or Ctrl-C.
        once: End when no item is available; exit with 1 if one was not confirmed.
    """
    refuse_if(
        (type is None) == (queue is None), "give a type, as in --type 5, or any queue, as in --queue orders", "--type"
    )
    name = queue if queue is not None else encode_json(["agents", type])
    unconfirmed: set[Position] = set()

    def report(event: AgentEvent) -> None:
        if event.what in ("confirmed", "lost"):  # lost: it is another consumer's now
            unconfirmed.discard(event.item)
        elif event.what != "started":
            unconfirmed.add(event.item)
        seconds = round(event.seconds, 3) if event.seconds else None
        fate = None if event.fate is None else event.fate.value
        more = present({"pid": event.pid, "seconds": seconds, "fate": fate, "why": event.why})
        print_or_tell({"what": event.what, "item": event.item.text, "attempt": event.attempt, **more})

    # Agents of a type may wait before the first data come. Another queue must be there.
    with opened_queue(url, name, create=create or queue is None) as (db, own):
        own.layout.known.usual = Policy(5, growing_from(1.0))
        waits = None if backoff is None else growing_from(backoff)
        leases = Leases(own, max_attempts=max_attempts, backoff=waits)
        store_policy(db, own)
        dog = AgentWatchdog(leases, command, processes=processes, lock=lock, grace=grace, on_event=report)
        # A lost database must not end it: it waits, and its signals work meanwhile.
        db.options.set_transaction_timeout(0)
        with OnSignals(dog.stop):  # SIGHUP, which a consumer leaves to the application
            done = dog.drain(db) if once else dog.run(db)
        if once:
            tell_if_paused(db, own)
    print_or_tell({"what": "ended", **{name: getattr(done, name) for name in done.__slots__}})
    end_if(once and unconfirmed, UNCONFIRMED)


agents = typer.Typer(
    no_args_is_help=True,
    help="Serve queues to programs in any language, over the SCS Queue protocol, and be such a program.",
)
for command in (serve, send, receive, confirm):
    agents.command(cls=Command, help=reflowed(command.__doc__))(command_of(command, ROWS))
agents.command(cls=Command, help=reflowed(run.__doc__), context_settings=CONTEXT)(command_of(run, ROWS))
