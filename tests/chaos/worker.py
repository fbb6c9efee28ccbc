"""A process of a chaos run."""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue import ClusterError
from fdbqueue.engine import Subspace
from fdbqueue.layers.leases import Leases, constant, immediately
from fdbqueue.layers.leases import enqueueing as _enqueueing
from fdbqueue.layers.smart import SmartQueue
from fdbqueue.layers.staged import StagedQueue
from fdbqueue.layers.subscriptions import Subscription, Subscriptions
from fdbqueue.writes import bulk
from tests.chaos.agenthands import Agent, AgentHost
from tests.chaos.blobhands import BlobKeeper, Reader, Uploader
from tests.chaos.consumers import Taker
from tests.chaos.faults import ChaosClock, ChaosDatabase, Odds
from tests.chaos.hand import Hand, Tools
from tests.chaos.history import History
from tests.chaos.keepers import Keeper
from tests.chaos.kinds import CREDIT, WITH_SESSIONS, Kind, credit_of, head_of, log_of, most_attempts, queue_of
from tests.chaos.operators import Operator
from tests.chaos.producers import Loader, Producer
from tests.chaos.resulthands import Requester, Worker
from tests.chaos.sessionhands import GateKeeper, SessionKeeper, SessionProducer, SessionWorker, sessions_of
from tests.chaos.streamhands import StreamTaker
from tests.chaos.taskhands import Caller, TaskWorker
from tests.helpers.staging import hurry

THREADS = 2


@dataclass(frozen=True, slots=True)
class Part:
    """What one process is to do."""

    url: str
    space: bytes
    """The round's subspace: a queue, its log, and things of the processes' own."""
    folder: Path
    by: str
    role: str
    kind: Kind
    seed: str
    stop: Path
    """A file; when it is there, it is enough."""
    odds: Odds
    buggify: bool = False
    """Whether the client library is to do odd things by itself."""


ROLES: dict[str, type[Hand]] = {"producer": Producer, "loader": Loader, "consumer": Taker, "keeper": Operator}
SESSION_ROLES: dict[str, type[Hand]] = {
    "producer": SessionProducer,
    "loader": SessionProducer,
    "consumer": SessionWorker,
    "keeper": SessionKeeper,
}
BLOB_ROLES: dict[str, type[Hand]] = {
    "producer": Uploader,
    "loader": Uploader,
    "consumer": Reader,
    "keeper": BlobKeeper,
}
RESULT_ROLES: dict[str, type[Hand]] = {
    "producer": Requester,
    "loader": Requester,
    "consumer": Worker,
    "keeper": Keeper,
}
AGENT_ROLES: dict[str, type[Hand]] = {"server": AgentHost, "agent": Agent}
STREAM_ROLES: dict[str, type[Hand]] = {**ROLES, "consumer": StreamTaker}
TASK_ROLES: dict[str, type[Hand]] = {
    "producer": Caller,
    "loader": Caller,
    "consumer": TaskWorker,
    "keeper": TaskWorker,
}
ROLES_OF = {
    Kind.sessions: SESSION_ROLES,
    Kind.gates: SESSION_ROLES | {"keeper": GateKeeper},
    Kind.agents: AGENT_ROLES,
    Kind.blobs: BLOB_ROLES,
    Kind.results: RESULT_ROLES,
    Kind.streams: STREAM_ROLES,
    Kind.tasks: TASK_ROLES,
}


def play(part: Part) -> None:
    """Play a part, to the end or until killed."""
    history = History(part.folder, part.by)
    failed: list[str] = []
    stacks = (part.folder / f"{part.by}.stacks").open("w")  # stays open: a process that is stuck is asked for them
    faulthandler.register(signal.SIGUSR1, stacks)
    try:
        in_a_hurry(pytest.MonkeyPatch())
        if part.buggify:
            buggify()
        db = _opened(part)
        if db is None:
            return
        tools = tools_of(part, history, db)
        roles = ROLES_OF.get(part.kind, ROLES)
        hands = [roles[part.role](tools, number, f"{part.seed}/{number}") for number in range(THREADS)]
        threads = [threading.Thread(target=_work, args=(hand, part, failed)) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # noqa: BLE001 - whatever it is, the run is to report it
        failed.append(traceback.format_exc())
    if failed:
        (part.folder / f"{part.by}.failed").write_text("\n".join(failed))
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # a network thread that waits for a server that is down must not hold it up


def in_a_hurry(patch: pytest.MonkeyPatch) -> None:
    """Let the library of this process wait shorter, and load in more batches, so that some of each load fail."""
    logging.getLogger("fdbqueue.layers.consumer").addFilter(_is_news)
    hurry(patch)
    patch.setattr(bulk, "BATCH_ITEMS", 100)
    patch.setattr(_enqueueing, "BATCH_ITEMS", 100)


def _is_news(record: logging.LogRecord) -> bool:
    """Say whether a message of a consumer is about more than a handler that failed as planned."""
    return record.exc_info is None or str(record.exc_info[1]) != "chaos"


def _work(hand: Hand, part: Part, failed: list[str]) -> None:
    try:
        hand.work(part.stop)
    except BaseException:  # noqa: BLE001 - as above
        failed.append(traceback.format_exc())


def tools_of(part: Part, history: History, opened: Any) -> Tools:
    """Return what the hands of a process share."""
    space = Subspace(rawPrefix=part.space)
    queue = queue_of(space, part.kind)
    clock = ChaosClock(part.odds, history, f"{part.seed}/clock")
    db = ChaosDatabase(opened, part.odds, history, f"{part.seed}/faults")
    backoff = random.Random(part.space).choice([immediately, constant(0.1)])  # one policy for all of a queue
    head = head_of(queue, part.kind)
    leases = Leases(queue, max_attempts=most_attempts(part.kind), backoff=backoff, clock=clock, head=head)
    names = CREDIT if part.kind is Kind.subscriptions else ()
    return Tools(
        # The promises of tasks are about what calls did, and need no log.
        db=db if part.kind is Kind.tasks else log_of(space, part.kind).of(db, by=part.by, clock=clock),
        space=space,
        own=space["own"],
        kind=part.kind,
        queue=queue,
        leases=leases,
        staged=StagedQueue(leases, consumer=part.by),
        subscribed=Subscriptions(leases) if credit_of(part.kind) else None,
        # The round has registered them.
        subscriptions=[Subscription(leases, name, function=None, owner=b"", ownership_us=0) for name in names],
        smart=SmartQueue(leases) if part.kind is Kind.smart else None,
        sessions=sessions_of(queue, backoff, clock, consumer=part.by, kind=part.kind)
        if part.kind in WITH_SESSIONS
        else None,
        folder=part.folder,
        history=history,
        clock=clock,
    )


def _opened(part: Part) -> Any:
    """Open the database, again and again while its server is down, which the library says within seconds.

    None if the round has ended meanwhile.
    """
    while True:
        db = fdbqueue.open(part.url)
        try:
            db.create_transaction()
        except ClusterError:
            if part.stop.exists():
                return None
        else:
            return db


def buggify(*, activated_percent: int = 40, fired_percent: int = 10) -> None:
    """Let the client library of this process fail now and then of its own accord.

    Args:
        activated_percent: how many of its places may fail in this process at all.
        fired_percent: how often each of those does.
    """
    import fdb

    fdb.api_version(730)
    fdb.options.set_client_buggify_enable()
    fdb.options.set_client_buggify_section_activated_probability(activated_percent)
    fdb.options.set_client_buggify_section_fired_probability(fired_percent)
