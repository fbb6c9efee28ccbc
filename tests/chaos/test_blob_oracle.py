"""The oracle notices what breaks the promise of blobs, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from fdbqueue.layers.blobs import Blobs, BlobWriter
from fdbqueue.layers.oplog._oplog import calling
from tests.chaos.blobhands import data_of, item_of, read_whole
from tests.chaos.history import KILLED, OK, REFUSED
from tests.chaos.kinds import Kind
from tests.chaos.scene import Scene

SIZE = 1_100_000


@pytest.fixture
def scene(other: Any) -> Scene:
    made: Scene = other(Kind.blobs)
    return made


def write(scene: Scene, name: str, *, size: int = SIZE, lease: float = 10.0, outcome: str = OK) -> Any:
    """Write the data of an upload; return the writer and the call."""
    told = scene.told("upload", {"blob": name, "size_bytes": size}, outcome=outcome)
    out = Blobs(scene.leases, lease=lease, clock=scene.clock).write(scene.db, item_of(name, size))
    with calling(f"upload#{told.number}"):
        out.write(data_of(name, size))
    return out, f"upload#{told.number}"


def upload(scene: Scene, name: str, **terms: Any) -> BlobWriter:
    out: BlobWriter
    out, call = write(scene, name, **terms)
    with calling(call):
        out.commit()
    return out


def sweep(scene: Scene) -> None:
    told = scene.told("sweep", {})
    with calling(f"sweep#{told.number}"):
        Blobs(scene.leases, clock=scene.clock).sweep(scene.db)


def first(scene: Scene) -> bytes:
    """Return the key of the first piece of a blob."""
    key: bytes = scene.raw.get_range_startswith(scene.queue.layout.blobs.key(), limit=1)[0].key
    return key


def test_uploads_that_end_or_are_swept_break_nothing(scene: Scene) -> None:
    for size in (0, 4_000, 990_000, SIZE):
        upload(scene, f"of {size}", size=size)
    write(scene, "left", outcome=KILLED)
    scene.clock.now += 20
    sweep(scene)
    while lease := scene.lease():
        scene.told("read", {"of": lease.position.text}, read_whole(scene.db, Blobs(scene.leases), lease))
        scene.ack(lease)
    assert scene.broken() == set()


def test_an_item_without_all_of_its_data_is_found(scene: Scene) -> None:
    out, call = write(scene, "a")
    with calling(call):
        tr = scene.db.create_transaction()
        out.commit(tr)
        tr.clear(first(scene))
        tr.commit().wait()
    scene.ack(scene.lease())
    assert scene.broken() == {"blobs"}


def test_data_that_change_are_found(scene: Scene) -> None:
    upload(scene, "a")
    scene.behind_the_back(lambda tr: tr.set(first(scene), b"other data"))
    lease = scene.lease()
    scene.told("read", {"of": lease.position.text}, read_whole(scene.db, Blobs(scene.leases), lease))
    scene.ack(lease)
    assert scene.broken() == {"blobs"}


def test_a_sweep_of_a_live_upload_is_found(scene: Scene) -> None:
    write(scene, "a", outcome=REFUSED)
    sweeper = Blobs(scene.leases, clock=lambda: scene.clock.now + 100)
    told = scene.told("sweep", {})
    with calling(f"sweep#{told.number}"):
        sweeper.sweep(scene.db)
    assert scene.broken() == {"blobs"}


def test_data_that_stay_without_an_item_are_found(scene: Scene) -> None:
    write(scene, "a", outcome=KILLED)
    assert scene.broken() == {"blobs"}, "nothing swept the upload"


def test_a_refused_upload_that_enqueued_its_item_is_found(scene: Scene) -> None:
    upload(scene, "a", outcome=REFUSED)
    scene.ack(scene.lease())
    assert scene.broken() == {"blobs"}


def test_an_acknowledged_upload_whose_item_never_came_is_found(scene: Scene) -> None:
    scene.told("upload", {"blob": "a", "size_bytes": SIZE})
    assert scene.broken() == {"blobs"}
