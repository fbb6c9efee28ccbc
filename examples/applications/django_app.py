"""A Django project in one file: a view's function enqueues after the commit, and a management command works.

    python -m examples.applications.django_app work
    python -m examples.applications.django_app sweep

In a project of yours `Command` is in `shop/management/commands/orders.py`, and `python manage.py orders work` runs it.

Django's database and fdbqueue's commit one after the other. `place_order` therefore enqueues in `on_commit`. A process
may die in between; `sweep` enqueues the orders that it left. See `docs/operations/applications.md`.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from typing import Any

import django
from django.conf import settings

import fdbqueue
from fdbqueue.layers import Consumer, Lease, Leases

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DB", "shop.sqlite3")}
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()

from django.core.management.base import BaseCommand, CommandParser
from django.db import close_old_connections, models, transaction

orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=5)


class Order(models.Model):
    """An order. `is_queued` is the outbox: an order without it has perhaps no item yet."""

    sku = models.CharField(max_length=100)
    is_queued = models.BooleanField(default=False, db_index=True)
    is_sent = models.BooleanField(default=False)

    class Meta:
        app_label = "shop"


@cache
def database() -> Any:
    """Return fdbqueue's database of this process: opened at its first use, so after a server has forked."""
    return fdbqueue.open()


@transaction.atomic
def place_order(sku: str) -> Order:
    """Write an order, and enqueue it when the outermost `atomic` has committed."""
    order: Order = Order.objects.create(sku=sku)
    # partial, not lambda: in a loop all lambdas would see the last order. robust: an error must not stop the callbacks
    # of others, and can't undo the commit; Django logs it, and `sweep` enqueues the order.
    transaction.on_commit(partial(enqueue, order.pk), robust=True)
    return order


def enqueue(number: int) -> None:
    """Enqueue an order once, however often this is called."""
    once(database(), number)
    Order.objects.filter(pk=number).update(is_queued=True)


@fdbqueue.transactional
def once(tr: Any, number: int) -> None:
    """Enqueue an order unless its key says that it was enqueued."""
    key = b"enqueued/%d" % number
    if tr[key] == None:  # noqa: E711 - a read that is not there equals None
        tr[key] = b""
        orders.enqueue(tr, {"order": number})


def send(lease: Lease[Any]) -> None:
    """Send one order, at least once: an order that was sent is left alone."""
    close_old_connections()  # a worker lives longer than connections do; requests close theirs, a consumer must
    order = Order.objects.get(pk=lease.value["order"])
    if not order.is_sent:
        print(f"sent {order.sku}", flush=True)  # noqa: T201 - the work
        Order.objects.filter(pk=order.pk).update(is_sent=True)


class Command(BaseCommand):
    """The worker and the sweep."""

    help = "work: send orders until SIGTERM. sweep: enqueue orders that have no item yet."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take one word, and whether to end."""
        parser.add_argument("what", choices=["work", "sweep"])
        parser.add_argument("--drain", action="store_true", help="end when no item is available")

    def handle(self, *_: Any, what: str, drain: bool, **__: Any) -> None:
        """Run it."""
        if what == "sweep":
            left = list(Order.objects.filter(is_queued=False).values_list("pk", flat=True))
            for number in left:
                enqueue(number)
            self.stdout.write(f"{len(left)} orders enqueued")
            return
        consumer = Consumer(orders, send, grace=20)
        report = consumer.drain(database()) if drain else consumer.run(database())
        self.stdout.write(f"{report.acked} orders done")


if __name__ == "__main__":
    Command().run_from_argv(["manage.py", "orders", *sys.argv[1:]])
