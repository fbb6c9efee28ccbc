"""A Flask application: a request enqueues, and `flask work` is the consumer, a process of its own.

FDBQUEUE_URL=file:shop flask --app examples.applications.flask_app run
FDBQUEUE_URL=file:shop flask --app examples.applications.flask_app work
fdbqueue web --url file:shop
"""

from __future__ import annotations

from functools import cache
from typing import Any

import click
from flask import Flask, Response, jsonify

import fdbqueue
from fdbqueue.layers import Consumer, Lease, Leases

app = Flask(__name__)
orders = Leases(fdbqueue.Queue("orders", codec="json"), max_attempts=5)


@cache
def database() -> Any:
    """Return the database of this process: opened at its first use, so after a server has forked."""
    return fdbqueue.open()


@app.post("/orders/<sku>")
def order(sku: str) -> Response:
    """Take an order. The answer is sent when the item is committed."""
    return jsonify(item=orders.enqueue(database(), {"sku": sku}).text)


@app.get("/healthz")
def healthz() -> Response:
    """Answer if the database does."""
    return jsonify(available=orders.stats(database()).available)


@app.cli.command("work")
@click.option("--drain", is_flag=True, help="End when no item is available.")
def work(drain: bool) -> None:
    """Handle orders until SIGTERM or Ctrl-C."""
    consumer = Consumer(orders, send, grace=20)
    report = consumer.drain(database()) if drain else consumer.run(database())
    click.echo(f"{report.acked} orders sent")


def send(lease: Lease[Any]) -> None:
    """Send one order."""
    click.echo(f"sent {lease.value['sku']}")
