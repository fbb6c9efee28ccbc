"""Register the requests of one process, one after the other, each under a client id of its own."""

from __future__ import annotations

import os
from typing import Any

from fdbqueue.lowlevel import Future, Transaction
from fdbqueue.stored.layout import RANDOM_BYTES

from ..leases import Leases
from .requests import Requests, Wish, wished


class Registrar:
    """Makes the requests of one process for leases of one duration.

    Args:
        leases: the leases of the queue.
        requests: the requests of the queue.
        duration_us: the duration of the leases; 0: items are taken out.
        consumer: the name of the consumer that takes the leases.
    """

    __slots__ = ("_client", "_consumer", "_duration_us", "_leases", "_registrations", "_requests", "swept")

    def __init__(self, leases: Leases, requests: Requests, *, duration_us: int, consumer: str) -> None:
        self._leases = leases
        self._requests = requests
        self._duration_us = duration_us
        self._consumer = consumer
        self._client = os.urandom(RANDOM_BYTES)
        self._registrations = 0
        self.swept = False
        """Whether it has swept old grants, which it does once. Later registrations read nothing."""

    async def register(self, tr: Transaction, wanted: int) -> tuple[Wish, Future[Any]]:
        """Register a request behind all earlier ones, by a blind write. Return it, and its versionstamp's future."""
        if not self.swept:
            self.swept = True
            await self._requests.sweep_grants(tr, self._client, self._leases.now_us())
        # Each registration has its own grant key. Work on an old grant never meets a new one.
        self._registrations += 1
        wish = self.wish(tr, wanted)
        return wish, self._requests.register(tr, wish)

    def wish(self, tr: Transaction, wanted: int) -> Wish:
        """Return the terms of the latest registration, valid from now on."""
        client = self._client + self._registrations.to_bytes(4, "big")
        now_us = self._leases.now_us()
        return wished(tr, client, wanted, now_us=now_us, duration_us=self._duration_us, consumer=self._consumer)
