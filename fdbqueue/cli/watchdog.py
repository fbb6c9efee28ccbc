"""``fdbqueue watchdog`` and ``fdbqueue sweep``: what ends with time."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed

from fdbqueue.agents.queues import Locks
from fdbqueue.cli.errors import OnSignals, refuse, refuse_if, tell
from fdbqueue.cli.input import encode_json
from fdbqueue.cli.naming import sessions_of
from fdbqueue.cli.opening import opened_queue, store_policy
from fdbqueue.cli.output import print_json, print_or_tell, say
from fdbqueue.engine import FDBError
from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import TRANSACTION_TIMED_OUT
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.consumer import Watchdog
from fdbqueue.layers.leases import Leases, Reclaimed
from fdbqueue.stored.names import session_json

HOOK_SECONDS = 60.0
PATIENCE_SECONDS = 10.0
"""How long one transaction may take. The command reacts to SIGTERM only after it."""


def watchdog(
    queue: str,
    command: str | None = None,
    interval: float = 1.0,
    once: bool = False,
    max_attempts: int | None = None,
    create: bool = False,
    url: str | None = None,
) -> None:
    """Fire due timers until SIGTERM or Ctrl-C: give back expired leases, end delays, remove expired items.

    It looks after plain items and sessions. Prints a JSON line per expired lease. The command of --exec has
    FDBQUEUE_ITEM, FDBQUEUE_CONSUMER, FDBQUEUE_ATTEMPT and FDBQUEUE_FATE in its environment, and FDBQUEUE_SESSION for an
    item of a session. It can restart the consumer, and may take up to 60 seconds.

    Args:
        command (--exec, COMMAND): Run this program for each expired lease, without a shell.
        interval (min=0.01): Longest time between two reads, in seconds.
        once: Fire the due timers once and exit.

    Example: fdbqueue watchdog orders --exec 'systemctl restart worker'
    """
    try:
        words = None if command is None else shlex.split(command)
    except ValueError as error:
        refuse(f"{error} in {command!r}", "--exec")
    refuse_if(words == [], "the command is empty", "--exec")
    hook = _hook(words)
    with opened_queue(url, queue, create=create, patience=PATIENCE_SECONDS) as (db, own):
        sources = (Leases(own, max_attempts=max_attempts), sessions_of(own, max_attempts=max_attempts))
        store_policy(db, own)
        dogs = [Watchdog(source, hook=hook, interval=interval) for source in sources]

        def stop() -> None:
            for dog in dogs:
                dog.stop()

        if once:
            for dog in dogs:
                dog.sweep(db)
            say(_done(dogs))
            return
        # The watchdogs run in their own threads. A signal handler that sets an event could deadlock if its own thread
        # waits for that event.
        with OnSignals(stop), ThreadPoolExecutor(len(dogs)) as threads:
            # Said only now: a program that reads it may send the signal at once.
            tell(f"Looking after {queue}, at least every {interval:g} s. Ctrl-C ends it.")
            for ended in as_completed([threads.submit(run_one, dog, db) for dog in dogs]):
                stop()  # if one of them fails, both end
                ended.result()
    tell(_done(dogs))


def _done(dogs: Iterable[Watchdog]) -> str:
    leases, delays, expired = (sum(getattr(dog.report, one) for dog in dogs) for one in ("leases", "delays", "expired"))
    return f"Leases that had expired: {leases:,}. Delays that were over: {delays:,}. Expired items: {expired:,}."


def run_one(dog: Watchdog, db: Database) -> None:
    """Run the watchdog until it is stopped, even while the database does not answer."""
    while True:
        try:
            dog.run(db)
            return
        except FDBError as error:
            if error.code != TRANSACTION_TIMED_OUT:
                raise
            tell("The database did not answer in time.")


def _hook(command: list[str] | None) -> Callable[[Reclaimed], None]:
    def report(found: Reclaimed) -> None:
        told = {
            "item": found.position.text,
            "consumer": found.consumer,
            "attempt": found.attempt,
            "fate": found.fate.value,
        }
        if found.session is not None:
            told = {"session": session_json(found.session), **told}
        print_or_tell(told)
        if command:
            texts = {name: value if isinstance(value, str) else encode_json(value) for name, value in told.items()}
            names = {f"FDBQUEUE_{name.upper()}": text for name, text in texts.items()}
            try:
                # The command's output must not get between the JSON lines.
                subprocess.run(command, env={**os.environ, **names}, stdout=2, timeout=HOOK_SECONDS, check=True)
            except (OSError, subprocess.SubprocessError) as error:
                tell(f"Error: the command of --exec failed for {told['item']}: {error}")

    return report


def sweep(queue: str, url: str | None = None) -> None:
    """Remove what interrupted uploads of blobs left, and the IDs of agents' locks that are over.

    New uploads and new locks do this little by little. This command does all of it, for a queue that gets no more.
    Prints how many of each it removed. It changes no item: that is the work of `fdbqueue watchdog`.

    Example: fdbqueue sweep '["agents", 5]'
    """
    with opened_queue(url, queue) as (db, own):
        leases = Leases(own)
        removed = {"uploads": Blobs(leases).sweep(db).swept, "locks": Locks(leases).sweep(db)}
    print_json(removed)
