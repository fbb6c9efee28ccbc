"""``fdbqueue stats``."""

from __future__ import annotations

from dataclasses import asdict

from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import print_pairs, wants_table, write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.engine import open
from layers.leases import Leases


def stats(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Print how many items there are in each state, how many came and went, and how old the first one is."""
    with open(url) as db:
        found = asdict(Leases(queue_of(queue)).stats(db))
    if wants_table(as_json):
        print_pairs(queue, found)
    else:
        write_lines([encode_json({"queue": queue, **found}).encode() + b"\n"])
