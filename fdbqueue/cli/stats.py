"""``fdbqueue stats``."""

from __future__ import annotations

from dataclasses import asdict

from fdbqueue.cli.options import AsJson, QueueName, Url, queue_of
from fdbqueue.cli.output import print_pairs, wants_table, write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.engine import open


def stats(queue: QueueName, url: Url = None, as_json: AsJson = False) -> None:
    """Print how many items there are, and how many came and went."""
    with open(url) as db:
        found = asdict(queue_of(queue).stats(db))
    if wants_table(as_json):
        print_pairs(queue, found)
    else:
        write_lines([encode_json({"queue": queue, **found}).encode() + b"\n"])
