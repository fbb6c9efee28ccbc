"""This library and its peers, in one run: those that are served by processes of their own, and those that are not."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.contenders import CallQueue, Stand, on_a_cluster
from tests.benchmarks.contenders_sqlite import on_this_machine
from tests.benchmarks.harness import cluster_url
from tests.benchmarks.servers import servers


@dataclass(frozen=True, slots=True)
class Group:
    """Those that are compared with each other."""

    name: str
    lines: Sequence[CallQueue]


@contextlib.contextmanager
def groups(*, staged: bool) -> Iterator[list[Group]]:
    """Yield the groups, opened; their servers are up, and stopped afterwards.

    Args:
        staged: whether this library takes part with its layer for many consumers, or with the queue by itself.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        served: list[Stand] = stack.enter_context(servers(folder))
        url = cluster_url()
        if url is not None:
            served = on_a_cluster(url, staged=staged) + served
        found = [("with a server", served), ("embedded", on_this_machine(folder, staged=staged))]
        yield [Group(name, [_opened(stand, stack) for stand in stands]) for name, stands in found if stands]


def _opened(stand: Stand, stack: contextlib.ExitStack) -> CallQueue:
    line = CallQueue(stand)
    stack.callback(line.close)
    return line
