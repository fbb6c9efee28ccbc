"""What a transaction ends with: its commit, or the pause before its next attempt."""

from __future__ import annotations

import random
import threading
import time

from fdbqueue.engine.embedded.futures import Future, FutureVoid, Pending, call
from fdbqueue.engine.errors import FDBError


class Commit(Future[None]):
    __slots__ = ("_callbacks", "_done", "_error", "_lock", "_request", "_store", "_tr")

    @classmethod
    def start(cls, tr):
        from fdbqueue.engine.embedded.store import CommitRequest

        writes = tr._writes
        self = cls.__new__(cls)
        self._tr = tr
        self._store = tr._store
        self._lock = threading.Lock()
        self._callbacks = []
        self._done = False
        self._error = 0
        self._request = None
        tr._commit = self
        if writes.empty:
            self._done = True
            if tr._stamp is not None:
                tr._stamp.settle(error=2021)
            if tr._snap is not None:
                tr._snap.close()
            return self
        settings = tr._settings
        mutations = writes.mutations()
        keys = writes.conflict_keys()
        size = 0
        if tr._size * 2 > settings.size_limit:
            size = sum(len(k) + len(v) + 44 for _, k, v in mutations)
            size += sum(2 * len(k) + 25 for k in keys) + sum(2 * len(k) + 25 for k in tr._gets)
            size += sum(len(b) + len(e) + 24 for b, e in writes.conflicts)
            size += sum(len(b) + len(e) + 24 for b, e in tr._read_ranges)
        if size > settings.size_limit:
            self._finish(2101)
            return self
        reading = [(key, key + b"\0") for key, counts in tr._gets.items() if counts]
        reading += tr._read_ranges
        self._request = CommitRequest(
            snapshot_version=tr._version,
            read_ranges=reading,
            write_ranges=[(key, key + b"\0") for key in keys] + writes.conflicts,
            mutations=mutations,
            report_conflicts=settings.report_conflicts,
        )
        self._store.submit(self._request)
        if tr._stamp is not None or tr._watches:
            self._store.on_done(self._request, lambda _: self.look())
        return self

    def _finish(self, error: int) -> None:
        with self._lock:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        tr = self._tr
        if tr._commit is self:
            if error:
                if tr._stamp is not None:
                    tr._stamp.settle(error=2020)
            else:
                request = self._request
                tr._committed_version = request.version
                if tr._stamp is not None:
                    tr._stamp.settle(request.version.to_bytes(8, "big") + request.batch.to_bytes(2, "big"))
        if tr._snap is not None:
            tr._snap.close()
        for callback in callbacks:
            call(callback, self)

    def fail(self, error: int) -> None:
        with self._lock:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call(callback, self)

    def look(self) -> bool:
        if not self._done and self._request.done:
            self._finish(self._request.error or 0)
        return self._done

    def wait(self) -> None:
        self.block_until_ready()
        if self._error:
            raise FDBError(self._error)

    def is_ready(self) -> bool:
        return self._done or self.look()

    def block_until_ready(self) -> None:
        if not self._done:
            self._store.wait(self._request)
            self.look()

    def on_ready(self, callback) -> None:
        with self._lock:
            waiting = not self._done
            if waiting:
                self._callbacks.append(callback)
                first = len(self._callbacks) == 1
        if not waiting:
            call(callback, self)
        elif first:
            self._store.on_done(self._request, lambda _: self.look())

    def cancel(self) -> None:
        self.fail(1101)


RETRYABLE = frozenset({1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223})
RESOURCE = frozenset({1042, 1078})


class Pause(Pending[None]):
    __slots__ = ("_due", "_timer", "_tr")

    @classmethod
    def start(cls, tr, code: int):
        self = cls()
        self._tr = tr
        self._timer = None
        if tr._broken:
            return FutureVoid(None, tr._broken)
        settings = tr._settings
        over = settings.retry_limit != -1 and tr._retries >= settings.retry_limit
        tr._retries += 1
        if over or code not in RETRYABLE and code not in (1007, 1009):
            tr._break(1025)
            return FutureVoid(None, code if code else 2000)
        if code in RETRYABLE:
            delay = tr._backoff * random.random()
            tr._backoff = min(tr._backoff * 2, 30.0 if code in RESOURCE else settings.max_delay)
        else:
            delay = min(0.01, settings.max_delay)
        self._due = time.monotonic() + delay
        tr._pause = self
        tr._odd = True
        return self

    def look(self) -> None:
        if not self._settled and time.monotonic() >= self._due:
            self._renew()

    def _renew(self) -> None:
        tr = self._tr
        if tr._pause is self:
            tr._abandon(1025)
            tr._renew()
        self.settle()

    def is_ready(self) -> bool:
        self.look()
        return self._settled

    def block_until_ready(self) -> None:
        while not self._settled:
            left = self._due - time.monotonic()
            if left > 0:
                time.sleep(left)
            self.look()

    def on_ready(self, callback) -> None:
        Pending.on_ready(self, callback)
        if not self._settled and self._timer is None:
            self._timer = threading.Timer(max(0, self._due - time.monotonic()), self._renew)
            self._timer.daemon = True
            self._timer.start()
