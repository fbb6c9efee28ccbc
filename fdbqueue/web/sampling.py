"""Remember the figures of all queues, for rates, sparklines and a first page that costs no reads.

One thread reads the catalogue every few seconds while somebody looks, and every 15 seconds otherwise. A page shows the
last sample and its age. So a thousand open pages cost the database as much as one.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace

from fdbqueue import ClusterError, FDBError, FdbQueueError, QueueInfo, StorageError
from fdbqueue.engine.api import Database
from fdbqueue.engine.errors import ANSWER_SECONDS, NO_ANSWER, told
from fdbqueue.observe.troubles import listed
from fdbqueue.reads.queue_rows import with_sessions
from fdbqueue.reads.remembering import History, Look
from fdbqueue.reads.trouble import Troubles, worst_first
from fdbqueue.stored.layout import Name

_log = logging.getLogger("fdbqueue.web")

SECONDS = 15.0
LIVE_SECONDS = 3.0
"""How often it reads while a page was shown in the last half minute."""
WATCHED_SECONDS = 30.0
HOUR = 3_600.0
POINTS = 240
"""How many points of a queue are kept."""
ALL_POINTS = 240_000
"""How many points of all queues are kept, in about 50 MB. Of many queues each has fewer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """All queues at one time."""

    at: float
    seconds: float
    """How long the read took."""
    queues: tuple[QueueInfo, ...]
    troubles: Troubles = field(default_factory=Troubles)
    """What is wrong with them, the worst first."""
    problem: str = ""
    """Why the last read failed; the queues are those of the one before."""


class Sampler:
    """Reads the figures of all queues in a thread of its own, from its first use until `close`.

    Args:
        db: the database.
        within: only queues below this name; None: all.
    """

    def __init__(self, db: Database, within: Name | None = None) -> None:
        self._db = db
        self._within = within
        self.histories: dict[str, History] = {}
        self.last: Sample | None = None
        self._lock = threading.Lock()
        self.ready = threading.Event()
        self.wake = threading.Event()
        self._closed = False
        self.thread: threading.Thread | None = None
        self._seen = 0.0

    def look(self) -> Sample:
        """Return the last sample. The first call waits until there is one.

        Raises:
            TimeoutError: the database has not answered for 5 seconds.
        """
        now = time.monotonic()
        with self._lock:
            was_idle, self._seen = now - self._seen > WATCHED_SECONDS, now
            if self.thread is None and not self._closed:
                was_idle = False  # the thread begins with a read
                self.thread = threading.Thread(target=self._run, name="fdbqueue web samples", daemon=True)
                self.thread.start()
        if was_idle:
            self.wake.set()
        if not self.ready.wait(ANSWER_SECONDS) or self.last is None:
            raise TimeoutError(NO_ANSWER)
        return self.last

    def history(self, text: str) -> History:
        """Return the last hour of a queue, by the text of its name: names such as (1,) and (1.0,) are equal."""
        return self.histories.get(text) or History(HOUR)

    def refresh(self) -> None:
        """Read again soon, after a change."""
        self.wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self.wake.set()
        if self.thread is not None:
            self.thread.join(5.0)

    def _is_gone(self) -> bool:
        """Return whether this or the database was closed."""
        if self._closed:
            return True
        try:
            self._db.create_transaction()
        except (StorageError, ClusterError) as error:
            return "was closed" in str(error)
        return False

    def _run(self) -> None:
        while not self._closed:
            begun = time.monotonic()
            try:
                self.sample()
            except (FdbQueueError, FDBError, OSError) as error:
                ended = self._is_gone()  # while this read: nothing is wrong
                if not ended:
                    _log.warning("The figures of the queues could not be read: %s", told(error))
                self._closed = ended
                old = self.last
                self.last = replace(old or Sample(time.time(), 0.0, ()), seconds=0.0, problem=told(error))
            self.ready.set()
            took = time.monotonic() - begun
            live = time.monotonic() - self._seen < WATCHED_SECONDS
            self.wake.wait(max(LIVE_SECONDS if live else SECONDS, 10 * took))
            self.wake.clear()

    def sample(self) -> None:
        begun = time.monotonic()
        every = list(listed(self._db, within=self._within))
        found = tuple(one.info for one in every)
        troubles = worst_first(trouble for one in every for trouble in one.troubles)
        now, most = time.time(), max(2, min(POINTS, ALL_POINTS // max(1, len(found))))
        for info in found:
            look = Look(now, with_sessions(info.stats, info.sessions))
            self.histories.setdefault(info.text, History(HOUR)).add(look, most, apart=HOUR / most)
        known = {info.text for info in found}
        for gone in self.histories.keys() - known:
            del self.histories[gone]
        self.last = Sample(now, time.monotonic() - begun, found, troubles)
