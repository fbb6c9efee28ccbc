"""``fdbqueue sweep``."""

from __future__ import annotations

from fdbqueue.agents.queues import Locks
from fdbqueue.cli.opening import opened_queue
from fdbqueue.cli.options import QueueName, Url, queue_of
from fdbqueue.cli.output import write_lines
from fdbqueue.cli.values import encode_json
from fdbqueue.layers.blobs import Blobs
from fdbqueue.layers.leases import Leases


def sweep(queue: QueueName, url: Url = None) -> None:
    """Remove what interrupted uploads of blobs left, and the IDs of agents' locks that are over.

    New uploads and new locks do this little by little. This command does all of it, for a queue that gets no more.
    Prints how many of each it removed. It changes no item: that is the work of `fdbqueue watchdog`.

    Example: fdbqueue sweep '["agents", 5]'
    """
    swept = queue_of(queue)
    leases = Leases(swept)
    with opened_queue(url, swept) as db:
        removed = {"uploads": Blobs(leases).sweep(db).swept, "locks": Locks(leases).sweep(db)}
    write_lines([encode_json(removed).encode() + b"\n"])
