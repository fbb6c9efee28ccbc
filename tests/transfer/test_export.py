"""Export and import: exact for random histories, interrupted at any point and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fdbqueue import ChecksBypassed, OrderError, Queue, SelectorError, StreamError
from fdbqueue.engine import Subspace
from fdbqueue.errors import TransferError
from fdbqueue.layers import Blobs, Groups, Leases, PriorityQueue, Results, Sessions
from fdbqueue.stored.names import queue_text
from fdbqueue.transfer import export_items, exports, files, import_items, parquet
from fdbqueue.transfer.records import Digest, FileHeader, from_line
from tests.helpers.smart import Progress, smart_queue
from tests.transfer.histories import HISTORIES, kept, live, queue_of

ENDINGS = ("jsonl", "parquet")


class Cut(Exception):
    """The process ends here."""


@contextlib.contextmanager
def cut_at(number: int) -> Iterator[None]:
    """Let the `number`-th step of an export or an import fail: a rename, before or after it; or a transaction."""
    left = number

    def cutting(call: Callable[..., Any]) -> Callable[..., Any]:
        def cut(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 2
            if left in (-1, -2):
                if left == -1 and (begun := call(*args, **kwargs)) is not None:
                    begun.close()
                raise Cut
            return call(*args, **kwargs)

        return cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", cutting(os.replace))
        patch.setattr(Queue, "transact", cutting(Queue.transact))
        yield


def repeated(call: Callable[[], Any], cuts: list[int]) -> Any:
    """Repeat a call that is cut, until it ends."""
    for number in cuts:
        with contextlib.suppress(Cut), cut_at(number):
            return call()
    return call()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts and batches small."""
    monkeypatch.setattr(exports, "PART_ITEMS", 3)
    monkeypatch.setattr(exports, "BATCH_ITEMS", 4)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("ending", ENDINGS)
@settings(max_examples=12)
@given(HISTORIES, st.booleans(), st.lists(st.integers(0, 12), max_size=4))
@example([("plain", b"1")] * 9, False, [0, 1, 2, 3, 4, 5, 6])
def test_a_history_comes_back_as_it_was(
    db: Any, tmp_path_factory: pytest.TempPathFactory, ending: str, history: Any, ordered: bool, cuts: list[int]
) -> None:
    space = Subspace(("fdbqueue tests", os.urandom(8)))
    one, other = queue_of(space["one"], ordered=ordered), queue_of(space["other"], ordered=ordered)
    file = tmp_path_factory.mktemp("export") / f"items.{ending}"
    live(db, one, history)
    before = kept(db, one)
    report = repeated(lambda: export_items(db, one, file), cuts)
    assert (report.items, [*file.parent.iterdir()]) == (len(before), [file])
    imported = repeated(lambda: import_items(db, other, file), cuts)
    assert (imported.digest, imported.items, imported.kept_positions) == (report.digest, len(before), True)
    assert kept(db, one) == kept(db, other) == before
    assert Leases(other).check(db).problems == ()
    again = import_items(db, other, file)
    assert (again.enqueued, again.items) == (0, len(before))
    if before:
        assert other.enqueue(db, b"later").index > max(row["index"] for row in before)
        appended = queue_of(space["more"], ordered=ordered)
        appended.enqueue(db, b"there before")
        assert not repeated(lambda: import_items(db, appended, file), cuts).kept_positions
        rows = [row for row in kept(db, appended, positions=False) if row["value"] != b"there before"]
        assert rows == [{**row, "position": None, "index": None} for row in before]
    db.clear_range_startswith(space.key())


def exported(db: Any, queue: Queue, folder: Path, ending: str = "jsonl") -> Path:
    file = folder / f"items.{ending}"
    export_items(db, queue, file)
    return file


def test_lines_are_readable(db: Any, space: Subspace, tmp_path: Path) -> None:
    queue = Queue(space, codec="json")
    position = Leases(queue).enqueue(db, {"sku": "teapot"}, headers={"color": "red"})
    header, line, footer = map(msgspec.json.decode, exported(db, queue, tmp_path).read_text().splitlines())
    assert (header["codec"], footer["items"]) == ("json", 1)
    assert (line["position"], line["value"], line["headers"]) == (position.text, {"sku": "teapot"}, {"color": "red"})
    table = pq.read_table(exported(db, queue, tmp_path, "parquet"))
    assert table.column("value").to_pylist() == [b'{"sku":"teapot"}']


@pytest.mark.parametrize("name", ["a\x00b", ("shop", 7), "'orders'"])
def test_the_header_has_the_text_of_the_queues_name(db: Any, space: Subspace, tmp_path: Path, name: Any) -> None:
    queue = Queue(space[name], codec="json")
    queue.enqueue(db, 1)
    header = msgspec.json.decode(exported(db, queue, tmp_path).read_text().splitlines()[0])
    assert header["queue"] == queue_text(queue.layout.prefix)


@pytest.mark.parametrize("written", ["'a\\x00b'", "('shop', 7)", "a"])
def test_a_file_is_imported_however_its_header_names_the_queue(
    db: Any, space: Subspace, tmp_path: Path, written: str
) -> None:
    queue = Queue(space["from"], codec="json")
    queue.enqueue(db, 1)
    file = exported(db, queue, tmp_path)
    first, *rest = file.read_text().splitlines()
    header = {**msgspec.json.decode(first), "queue": written}
    file.write_text("\n".join([msgspec.json.encode(header).decode(), *rest, ""]))
    other = Queue(space["to"], codec="json")
    assert import_items(db, other, file).items == 1


def test_an_interrupted_export_resumes_behind_its_last_part(
    db: Any, space: Subspace, tmp_path: Path, few: None
) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, [b"%d" % number for number in range(250)])
    file = tmp_path / "items.jsonl"
    with pytest.raises(Cut), cut_at(5):  # the header and the first part are there
        export_items(db, queue, file)
    with pytest.raises(TransferError, match=r"no such file\. Its export was interrupted"):
        import_items(db, queue, file)
    with pytest.raises(TransferError, match=r"an export of .* was begun there"):
        export_items(db, Queue(space["other"]), file)
    assert (export_items(db, queue, file).items, [*tmp_path.iterdir()]) == (250, [file])
    with pytest.raises(TransferError, match="exists already"):
        export_items(db, queue, file)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_damaged_file_is_refused_before_any_key_is_touched(
    db: Any, space: Subspace, tmp_path: Path, ending: str
) -> None:
    queue = Queue(space["from"])
    queue.enqueue_many(db, [b"one", b"two", b"three"])
    whole = exported(db, queue, tmp_path, ending).read_bytes()
    target, file = Queue(space["to"]), tmp_path / f"damaged.{ending}"
    for content in b"", b"{}", whole[:40], whole[:-5], whole.replace(b"two", b"2"), whole.replace(b"dHdv", b"dHdx"):
        if content == whole:
            continue
        file.write_bytes(content)
        with pytest.raises(TransferError):
            import_items(db, target, file)
    assert list(db.get_range_startswith(target.layout.prefix)) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"position":"x","state":"dead","text":"a"}', "line 2: 'x' is not a position"),
        ('{"position":"1:00","state":"gone","text":"a"}', "state is one of available"),
        ('{"position":"1:00","state":"dead"}', "one of value, text and base64"),
        ('{"position":"1:00","state":"dead","text":"a","base64":"YQ=="}', "one of value, text and base64"),
        ('{"position":"1:00","state":"delayed","text":"a"}', "needs visible_at_us"),
        ('{"position":"1:00","state":"dead","text":"a","atempts":1}', "unknown field `atempts`"),
        ('{"position":"1:00","state":"dead","text":"a","attempts":-1}', "numbers from 0 on"),
        ('{"position":"1:00","state":"dead","base64":"%"}', "the item 1:00 can't be read"),
        ('{"position":"1:1:00","state":"dead","text":"a"}', "has a rank, and others have none"),
        ('{"position":"1:00","state":"dead","text":"a"}', "the file was changed"),
    ],
)
def test_a_wrong_line_is_named(db: Any, space: Subspace, tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "items.jsonl"
    header = '{"fdbqueue":1,"queue":"q","codec":"bytes","order":null,"last_index":1}'
    file.write_text(f'{header}\n{line}\n{{"items":1,"digest":"00"}}\n')
    with pytest.raises(TransferError, match=told):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


GOOD = '{"position":"1:aa","state":"available","text":"a"}'
TOP = (1 << 64) - 1


@pytest.mark.parametrize(
    ("lines", "head", "told"),
    [
        ([GOOD, GOOD], {}, "line 3: the position 1:aa is there twice"),
        ([GOOD.replace("1:aa", "2:aa"), GOOD], {}, "line 3: the position 1:aa stands behind a higher one"),
        ([GOOD.replace("1:aa", f"{TOP}:aa")], {}, r"line 2: .* are over 2\^63 - 1"),
        ([GOOD.replace("1:aa", f"{TOP}:1:aa")], {"order": "priority"}, r"line 2: .* are over 2\^63 - 1"),
        ([GOOD.replace("1:aa", "\u0661:aa")], {}, "line 2: .* is the position 1:aa"),
        ([GOOD.replace("1:aa", "01:AA")], {}, "line 2: .* is the position 1:aa"),
        ([GOOD.replace("1:aa", "1:")], {}, "line 2: the random part of the position 1: has 1 to 64 bytes"),
        ([GOOD.replace("1:aa", "1:" + "aa" * 65)], {}, "line 2: the random part"),
        ([GOOD.replace("1:aa", "1:" + "aa" * 5_000)], {}, "line 2: a position has at most"),
        ([GOOD], {"last_index": TOP}, "line 1: its last_index"),
        ([GOOD], {"last_index": 1 << 70}, "line 1: its last_index"),
        ([GOOD], {"last_index": -5}, "line 1: its last_index"),
        ([GOOD.replace("1:aa", "1:1:aa")], {"order": "<b>evil\0"}, "line 1: the name of its order"),
        ([GOOD.replace("1:aa", "1:1:aa")], {"order": "o" * 101}, "line 1: the name of its order"),
        ([GOOD.replace("}", ',"marks":["zzz"]}')], {}, "line 2: a mark is one of blob"),
        ([GOOD.replace("}", ',"marks":["%s"]}' % ("z" * 2_000))], {}, "line 2: its marks have 2,004 bytes"),
        (
            [GOOD.replace("}", ',"headers":{"a":[%s0]}}' % ("[]," * 50_000))],
            {},
            "line 2: its headers have 150,009 bytes",
        ),
        ([GOOD.replace("}", f',"ttl_at_us":{(1 << 63) - 1}}}')], {}, "line 2: Its notes are damaged"),
        ([GOOD.replace("}", f',"attempts":{(1 << 63) - 1}}}')], {}, "line 2: Its notes are damaged"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_record_that_no_queue_can_have_is_named_before_any_key_is_touched(
    db: Any, space: Subspace, tmp_path: Path, lines: list[str], head: dict[str, Any], told: str
) -> None:
    file = written(tmp_path / "items.jsonl", lines, head)
    with pytest.raises(TransferError, match=told):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


def written(file: Path, lines: list[str], head: dict[str, Any]) -> Path:
    """Write lines as a file whose digest is right."""
    header = {"fdbqueue": 1, "queue": "q", "codec": "bytes", "order": None, "last_index": 1, **head}
    digest = Digest()
    for line in lines:
        try:
            digest.add(from_line(line.encode()).digest())
        except TransferError:
            digest.items += 1
    footer = {"items": digest.items, "digest": digest.hex}
    file.write_text("\n".join([json.dumps(header), *lines, json.dumps(footer), ""]))
    return file


@pytest.mark.parametrize("at", ["line 1", "line 2"])
def test_a_line_without_an_end_is_not_read_to_its_end(
    db: Any, space: Subspace, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 100_000)
    file = written(tmp_path / "items.jsonl", [GOOD], {})
    first, rest = file.read_bytes().split(b"\n", 1)
    with file.open("wb") as sparse:
        sparse.write(b"" if at == "line 1" else first + b"\n")
        sparse.seek(1 << 22)
        sparse.write(b"\n" + rest)
    tracemalloc.start()
    with pytest.raises(TransferError, match=rf"{at}: it has over 100,000 bytes"):
        import_items(db, Queue(space), file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21
    assert list(db.get_range_startswith(space.key())) == []


def bomb(file: Path, rows: int, size: int) -> Path:
    """Write a Parquet file whose rows share one value."""
    header = {"fdbqueue": 1, "queue": "q", "codec": "bytes", "order": None, "last_index": 1}
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(size)]))
    schema = parquet.schema_of(pa)
    plain = {"position": [f"{at + 1}:aa" for at in range(rows)], "state": ["available"] * rows}
    empty = {pa.int64(): 0, pa.binary(): b"", pa.string(): ""}
    columns = {
        one.name: shared if one.name == "value" else plain.get(one.name, [empty.get(one.type, [])] * rows)
        for one in schema
    }
    fields = [one if one.name != "value" else pa.field("value", shared.type, nullable=False) for one in schema]
    found = pa.table(columns, schema=pa.schema(fields))
    with pq.ParquetWriter(
        file,
        found.schema,
        compression="zstd",
        use_dictionary=["value"],
        dictionary_pagesize_limit=1 << 30,
        store_schema=False,
    ) as writer:
        writer.write_table(found)
        footer = json.dumps({"items": rows, "digest": "00" * 16})
        writer.add_key_value_metadata({b"fdbqueue header": json.dumps(header), b"fdbqueue footer": footer})
    return file


def test_a_value_that_many_rows_share_is_in_memory_once(db: Any, space: Subspace, tmp_path: Path) -> None:
    file = bomb(tmp_path / "items.parquet", 20, 1_000_000)
    assert file.stat().st_size < 10_000
    before = pa.default_memory_pool().bytes_allocated()
    found = parquet.records(file)
    next(found)
    assert pa.default_memory_pool().bytes_allocated() - before < 10_000_000
    with pytest.raises(TransferError, match="the file was changed"):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


def test_a_column_that_is_larger_than_any_of_an_export_is_not_decoded(
    db: Any, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_CHUNK_BYTES", 900_000)
    with pytest.raises(TransferError, match=r"its column 'value' takes 1,000,\d\d\d bytes for 2 rows"):
        import_items(db, Queue(space), bomb(tmp_path / "items.parquet", 2, 1_000_000))
    assert list(db.get_range_startswith(space.key())) == []


def test_a_row_with_the_position_of_another_is_named(db: Any, space: Subspace, tmp_path: Path) -> None:
    file = tmp_path / "items.parquet"
    record = from_line(GOOD.encode())
    with file.open("wb") as out:
        parquet.write(out, FileHeader(1, "q", "bytes", None, 1), [record, record])
    with pytest.raises(TransferError, match="row 2: the position 1:aa is there twice"):
        import_items(db, Queue(space), file)
    assert list(db.get_range_startswith(space.key())) == []


def test_what_can_not_be_composed_is_refused_with_the_remedy(db: Any, space: Subspace, tmp_path: Path) -> None:
    plain = Queue(space["plain"])
    plain.enqueue(db, b"x")
    file = exported(db, plain, tmp_path)
    Sessions(Queue(space["sessions"])).enqueue(db, b"x", session="ann")
    with Blobs(Leases(Queue(space["blob"]))).write(db) as blob:
        blob.write(bytes(1_200_000))
    PriorityQueue(Queue(space["levels"]), levels=3).enqueue(db, b"x")
    untyped: Any = import_items
    for call, kind, told in (
        (lambda: export_items(db, Queue(space["sessions"]), tmp_path / "1.jsonl"), StreamError, r"layers\.Sessions"),
        (lambda: import_items(db, Queue(space["sessions"]), file), StreamError, "an import does not see these"),
        (lambda: export_items(db, Queue(space["blob"]), tmp_path / "2.jsonl"), TransferError, r"Read the blob by"),
        (lambda: import_items(db, Queue(space["levels"]), file), OrderError, "in the order 'levels/3'"),
        (lambda: import_items(db, Queue(space["x"], codec="json"), file), TransferError, "Name the codec of the file"),
        (
            lambda: import_items(db, PriorityQueue(Queue(space["x"])).queue, file),
            TransferError,
            "Leave the order out",
        ),
        (lambda: export_items(db, plain, tmp_path / "items.csv"), TransferError, r"\.jsonl or \.parquet"),
        (lambda: export_items(db.create_transaction(), plain, file), TypeError, "takes a database"),
        (lambda: untyped(db, Leases(plain), file), TypeError, "Of a layer give its `queue`"),
        (lambda: untyped(db, plain, tmp_path / "none.jsonl"), TransferError, "no such file"),
    ):
        with pytest.raises(kind, match=told):
            call()
    assert list(db.get_range_startswith(space["x"].key())) == []


def test_items_with_marks_are_refused_or_restored_as_plain_ones(db: Any, space: Subspace, tmp_path: Path) -> None:
    leases = Leases(Queue(space["from"]))
    Groups(leases).open(db, "nightly").enqueue(db, b"member")
    Results(leases).enqueue(db, b"awaited")
    file, target = exported(db, leases.queue, tmp_path), Queue(space["to"])
    with pytest.raises(TransferError, match=r"has group, which an import can't restore.*without_marks=True"):
        import_items(db, target, file)
    assert list(db.get_range_startswith(target.layout.prefix)) == []
    assert import_items(db, target, file, without_marks=True).items == 2
    assert [item.value for item in target.dequeue_many(db)] == [b"member", b"awaited"]


def test_an_import_into_a_queue_that_is_cleared_meanwhile_says_so(
    db: Any, space: Subspace, tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, target = Queue(space["from"]), Queue(space["to"])
    queue.enqueue_many(db, [b"%d" % number for number in range(9)])
    file = exported(db, queue, tmp_path)
    with pytest.raises(Cut), cut_at(3):
        import_items(db, target, file)
    progress = exports.progress_of
    assert target.stats(db).available == 4

    async def cleared_after_it_was_read(tr: Any, **given: Any) -> Any:
        found = await progress(tr, **given)
        monkeypatch.setattr(exports, "progress_of", progress)
        target.clear(db)
        return found

    monkeypatch.setattr(exports, "progress_of", cleared_after_it_was_read)
    with pytest.raises(TransferError, match="was cleared while the file was imported"):
        import_items(db, target, file)
    assert import_items(db, target, file).enqueued == 9


def test_two_imports_of_one_file_at_once_write_each_item_once(
    db: Any, space: Subspace, tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, target = Queue(space["from"]), Queue(space["to"])
    queue.enqueue_many(db, [b"%d" % number for number in range(9)])
    file = exported(db, queue, tmp_path)
    progress, others = exports.progress_of, iter([None])

    async def beside_another(tr: Any, **given: Any) -> Any:
        found = await progress(tr, **given)
        if next(others, 1) is None:
            import_items(db, target, file)
        return found

    monkeypatch.setattr(exports, "progress_of", beside_another)
    assert import_items(db, target, file).items == 9
    assert [item.value for item in target.browse(db)] == [b"%d" % number for number in range(9)]


def test_a_smart_queue_is_refused(db: Any, space: Subspace, tmp_path: Path) -> None:
    Queue(space["plain"]).enqueue(db, b"x")
    file = exported(db, Queue(space["plain"]), tmp_path)
    smart_queue(space["smart"]).enqueue(db, Progress("a.iso", 1))
    with pytest.raises(ChecksBypassed):
        import_items(db, Queue(space["smart"]), file)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_export_where_has_the_items_that_fit_in_all_states(
    db: Any, space: Subspace, tmp_path: Path, ending: str
) -> None:
    leases = Leases(Queue(space["from"], codec="json"))
    for number in range(6):
        leases.enqueue(db, number, headers={"color": ("red", "blue")[number % 2]}, delay=1e6 if number == 4 else None)
    assert leases.lease(db) is not None
    file = tmp_path / f"red.{ending}"

    report = export_items(db, leases.queue, file, where="color = 'red'")

    other = Queue(space["to"], codec="json")
    imported = import_items(db, other, file)
    assert (report.items, imported.items, imported.kept_positions) == (3, 3, True)
    red = [row for row in kept(db, leases.queue) if row["value"] in ("0", "2", "4")]
    assert kept(db, other) == red
    assert len(red) == 3
    assert other.enqueue(db, 7).index > max(row["index"] for row in red)


def test_an_export_where_goes_on_with_the_same_condition_only(
    db: Any, space: Subspace, tmp_path: Path, few: None
) -> None:
    queue: Queue[bytes] = Queue(space)
    for number in range(250):
        queue.enqueue(db, b"%d" % number, headers={"n": number % 2})
    file = tmp_path / "items.jsonl"
    with pytest.raises(Cut), cut_at(5):
        export_items(db, queue, file, where="n = 1")
    for where in (None, "n = 0"):
        with pytest.raises(TransferError, match="items where n = 1 was begun there"):
            export_items(db, queue, file, where=where)
    assert export_items(db, queue, file, where="n = 1").items == 125
    with pytest.raises(SelectorError):
        export_items(db, queue, tmp_path / "other.jsonl", where="n =")
    with pytest.raises(TypeError, match="condition as text"):
        export_items(db, queue, tmp_path / "other.jsonl", where=7)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == [file]


def test_a_blob_that_does_not_fit_the_condition_is_no_obstacle(db: Any, space: Subspace, tmp_path: Path) -> None:
    leases = Leases(Queue(space))
    with Blobs(leases).write(db, headers={"color": "blue"}) as blob:
        blob.write(b"x" * 10)
    leases.enqueue(db, b"small", headers={"color": "red"})
    assert export_items(db, leases.queue, tmp_path / "red.jsonl", where="color = 'red'").items == 1
