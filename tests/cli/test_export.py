"""``fdbqueue export`` and ``fdbqueue import``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fdbqueue import Queue
from fdbqueue.base.position import Position
from fdbqueue.cli import errors
from fdbqueue.engine import Subspace
from fdbqueue.layers import Leases
from tests.cli.conftest import Run

pytestmark = pytest.mark.engines("file", "cluster")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_queue_is_exported_and_imported(
    db: Any, space: Subspace, run: Run, name: str, tmp_path: Path, ending: str
) -> None:
    queue, file = Queue(space, codec="json"), str(tmp_path / f"orders.{ending}")
    queue.enqueue_many(db, [{"sku": "teapot"}, {"sku": "cup"}])
    before = queue.to_arrow(db)
    exported = msgspec.json.decode(run("export", name, "--to", file).stdout)
    assert (exported["items"], exported["resumed"]) == (2, False)
    queue.clear(db)
    imported = msgspec.json.decode(run("import", name, "--from", file).stdout)
    assert imported == {"items": 2, "digest": exported["digest"], "enqueued": 2, "kept_positions": True}
    assert queue.to_arrow(db) == before
    assert msgspec.json.decode(run("import", name, "--from", file).stdout)["enqueued"] == 0


def test_an_export_where_has_the_items_that_fit(db: Any, space: Subspace, run: Run, name: str, tmp_path: Path) -> None:
    queue, file = Queue(space, codec="json"), str(tmp_path / "red.jsonl")
    queue.enqueue(db, 1, headers={"color": "red"})
    queue.enqueue(db, 2)
    assert msgspec.json.decode(run("export", name, "--to", file, "--where", "color = 'red'").stdout)["items"] == 1
    assert run("export", name, "--to", str(tmp_path / "other.jsonl"), "--where", "color =").exit_code == 2


def test_mistakes_are_told(db: Any, space: Subspace, run: Run, name: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    done = run("import", name, "--from", str(file))
    assert (done.exit_code, "there is no such file" in done.stderr) == (2, True)
    done = run("export", name, "--to", str(tmp_path / "orders.csv"))
    assert (done.exit_code, ".jsonl or .parquet" in done.stderr) == (2, True)
    assert "no pipe" not in done.stderr
    os.mkfifo(pipe := tmp_path / "pipe.jsonl")
    for file_of, command in (("--to", "export"), ("--from", "import")):
        for wrong in ("-", "/dev/stdout", "/dev/fd/63", str(pipe)):
            done = run(command, name, file_of, wrong)
            assert (done.exit_code, "and no pipe" in done.stderr) == (2, True)
            assert "browse QUEUE --records" in done.stderr
    assert run("export", name, "--to", str(file)).exit_code == 0
    done = run("export", name, "--to", str(file))
    assert (done.exit_code, "exists already" in done.stderr) == (2, True)
    header, footer = map(msgspec.json.decode, file.read_text().splitlines())
    file.write_bytes(msgspec.json.encode({**header, "codec": "mine"}) + b"\n" + msgspec.json.encode(footer) + b"\n")
    assert "import it there" in run("import", name, "--from", str(file)).stderr


def test_a_queue_moves_to_another_database(
    db: Any, url: str, space: Subspace, run: Run, name: str, tmp_path: Path
) -> None:
    queue, target = Queue(space, codec="json"), f"file:{tmp_path / 'other'}"
    queue.enqueue_many(db, [1, 2, 3])
    lease = Leases(queue).lease(db)
    assert lease is not None
    done = run("copy", name, url, target)
    assert (done.exit_code, msgspec.json.decode(done.stdout)["left"]) == (1, 1)
    Leases(queue).ack(db, lease)
    done = run("copy", name, url, target)
    report = msgspec.json.decode(done.stdout)
    assert (done.exit_code, report["items"], report["moved"]) == (0, 2, 0)
    assert report["digest"] == report["target_digest"]
    assert run("dequeue", name, "--all", "--url", target).stdout.split() == ["2", "3"]
    Queue("another").enqueue(db, b"x")
    done = run("copy", "another", url, url)
    Queue("another").clear(db)
    assert (done.exit_code, "the source and the target are one" in done.stderr) == (2, True)


@pytest.mark.engines("file")
def test_a_folder_is_backed_up(db: Any, url: str, space: Subspace, run: Run, name: str, tmp_path: Path) -> None:
    Queue(space, codec="json").enqueue(db, 1)
    folder = str(tmp_path / "backup")
    assert msgspec.json.decode(run("backup", url, folder).stdout)["folder"] == folder
    assert run("dequeue", name, "--url", f"file:{folder}").stdout == "1\n"
    done = run("backup", url, folder)
    assert (done.exit_code, "exists already" in done.stderr) == (3, True)


def test_an_item_that_can_not_be_read_is_left_out_if_that_is_asked_for(
    db: Any, space: Subspace, run: Run, name: str, tmp_path: Path
) -> None:
    queue = Queue(space, codec="json")
    queue.enqueue(db, 1)
    db[queue.layout.item_key(Position(7, b"bad"))] = b"\x20newer"

    refused = run("export", name, "--to", str(tmp_path / "a.jsonl"))
    assert refused.exit_code != 0
    assert "The item 7:626164 of" in refused.stderr

    kept = run("export", name, "--to", str(tmp_path / "b.jsonl"), "--skip-bad")
    told = msgspec.json.decode(kept.stdout)
    assert (told["items"], told["skipped"], "7:626164" in kept.stderr) == (1, 1, True)
    assert run("cancel", name, "7:626164").exit_code == 0


@pytest.mark.engines("file")
def test_an_export_makes_no_folder_for_a_mistyped_path(run: Run, name: str, tmp_path: Path) -> None:
    refused = run("export", name, "--to", str(tmp_path / "mistyped" / "out.jsonl"))

    assert refused.exit_code == errors.ENGINE
    assert "No such file or directory" in refused.stderr
    assert not (tmp_path / "mistyped").exists()
