"""Checksums of rows: whatever read meets a row that was changed on the disk, it raises an error that names the row."""

from __future__ import annotations

import ast
import re
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Queue
from fdbqueue.engine.embedded.store.disk import files, layout, rows
from fdbqueue.engine.embedded.store.disk.data_file import check_pages
from fdbqueue.engine.embedded.store.store import CommitRequest, Store
from fdbqueue.errors import StorageError
from tests.compat.make import fill
from tests.helpers.stores import clear, commit, contents, opened, put, view

LONG = b"l" * 1_800
ROWS = [(b"", b"empty"), (b"a", b"1"), (b"b", b"2" * 8), (b"c", b""), (b"d", b"4" * 9_000), (LONG, b"5"), (b"z", b"6")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    with opened(path) as store:
        put(store, *ROWS)
    return path


def change(folder: Path, key: bytes, value: bytes | None, database: bytes = layout.DATA) -> None:
    """Set a row as something that is not the library would; None: flip a bit of what is there."""
    with lmdb.open(str(folder), max_dbs=8, map_size=1 << 30) as env, env.begin(write=True) as txn:
        db = env.open_db(database, txn=txn)
        changed = bytearray(value or txn.get(key, db=db) or b"")
        if value is None:
            changed[len(changed) // 2] ^= 4
        txn.put(key, bytes(changed), db=db)


def stored(folder: Path) -> list[tuple[bytes, bytes, bytes]]:
    """Return the rows of all databases that have checksums, as they are stored."""
    with lmdb.open(str(folder), max_dbs=8, map_size=1 << 30) as env, env.begin() as txn:
        dbs = [(name, env.open_db(name, txn=txn)) for name in sorted(layout.CHECKED)]
        return [(name, key, value) for name, db in dbs for key, value in txn.cursor(db)]


def all_whole(folder: Path) -> bool:
    return all(crc32(key + value) == rows.WHOLE for _, key, value in stored(folder))


def plain() -> AbstractContextManager[object]:
    """Make folders as earlier versions made them."""
    return patch.object(files, "new_format", return_value=layout.PLAIN_FORMAT)


def apply(store: Store, op: int, key: bytes, param: bytes) -> None:
    request = commit(store, CommitRequest(mutations=[(op, key, param)], write_keys=[key]))
    if request.failure:
        raise request.failure


def get(store: Store, key: bytes) -> None:
    with view(store) as snapshot:
        snapshot.get(key)


def up(store: Store, limit: int = 0, reverse: bool = False) -> None:
    with view(store) as snapshot:
        snapshot.rows(b"b", b"c", limit, reverse)


READS: list[Callable[[Store], object]] = [
    contents,
    lambda store: get(store, b"b"),
    lambda store: store.current(b"b"),
    up,
    lambda store: up(store, 1),
    lambda store: up(store, 2),
    lambda store: up(store, 1, True),
    lambda store: up(store, 0, True),
    lambda store: apply(store, 2, b"b", bytes(8)),
    lambda store: apply(store, 17, b"b", bytes(8)),
    lambda store: apply(store, 20, b"b", bytes(8)),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("long", [True, False])
def test_each_read_of_a_changed_row_names_it(tmp_path: Path, read: Callable[[Store], object], long: bool) -> None:
    with opened(tmp_path) as store:
        put(store, *(row for row in ROWS if long or 0 < len(row[0]) < layout.DIRECT_KEY))
    change(tmp_path, b"b", None)
    with opened(tmp_path) as store:
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                read(store)
            assert f"{tmp_path}: the row b'b' is damaged" in str(caught.value)
            assert f"fdbqueue check --file {tmp_path}" in str(caught.value)
        get(store, b"a")
        put(store, (b"b", b"new"))  # nothing is read, so the row is well again
        get(store, b"b")


def test_rows_beside_a_range_are_not_looked_at(folder: Path) -> None:
    change(folder, b"a", None)
    change(folder, b"z", None)
    with opened(folder) as store, view(store) as snapshot:
        assert snapshot.rows(b"b", b"z") == ROWS[2:6]
        assert snapshot.rows(b"b", b"z", reverse=True) == ROWS[5:1:-1]
        clear(store, b"a", b"a\0")
        clear(store, b"z", b"z\0")
        assert contents(store) == [ROWS[0], *ROWS[2:6]]


@pytest.mark.parametrize("database", [layout.LONG, layout.LOG])
def test_parts_of_long_keys_and_the_log_have_checksums(folder: Path, database: bytes) -> None:
    if database == layout.LOG:
        with opened(folder) as store:
            put(store, *((b"%04d" % n, b"") for n in range(1_000)))  # more than the tail holds
    for name, key, _ in stored(folder):
        if name == database:
            change(folder, key, None, database)
    with opened(folder) as store, pytest.raises(StorageError, match="is damaged"):
        contents(store) if database == layout.LONG else store.entries_after(0)


def test_a_row_under_another_key_is_found(folder: Path) -> None:
    (value,) = (value for _, key, value in stored(folder) if key == b"b")
    change(folder, b"bb", value)
    with opened(folder) as store, pytest.raises(StorageError, match="row b'bb' is damaged"):
        contents(store)


def test_a_pointer_to_another_level_is_found(folder: Path) -> None:
    pointer = LONG[: layout.DIRECT_KEY] + b"\0"
    change(folder, pointer, struct.pack(">Q", 2))
    with opened(folder) as store, pytest.raises(StorageError, match="is damaged"):
        get(store, LONG)


@pytest.mark.parametrize("wrong", [{0}, {63}, {64}, {128}, {199}, {62, 63}, {5, 150}, set(range(200))])
def test_a_long_range_names_its_first_changed_row(tmp_path: Path, wrong: set[int]) -> None:
    keys = [b"%03d" % number for number in range(200)]
    with opened(tmp_path) as store:
        put(store, *((key, key * 9) for key in keys))
        assert contents(store) == [(key, key * 9) for key in keys]
    with lmdb.open(str(tmp_path), max_dbs=8, map_size=1 << 30) as env, env.begin(write=True) as txn:
        db = env.open_db(layout.DATA, txn=txn)
        for key in (keys[number] for number in wrong):
            txn.put(key, bytes(txn.get(key, db=db) or b"").replace(b"0", b"8").replace(b"1", b"7"), db=db)
    with opened(tmp_path) as store, pytest.raises(StorageError, match=f"row {keys[min(wrong)]!r} is damaged"):
        contents(store)


def test_rows_together_have_the_number_of_one() -> None:
    stored = [key + value + crc32(key + value).to_bytes(4, "little") for key, value in ROWS]
    assert crc32(rows.BETWEEN, rows.WHOLE) == 0
    assert all(crc32(rows.BETWEEN.join(stored[:count])) == rows.WHOLE for count in range(1, len(stored) + 1))


READS_AND_WRITES = {
    "commit/request.py": {"get": 2, "put": 2, "putmulti": 2},
    "commit_log.py": {"get": 2, "item": 1, "iternext": 1, "put": 2},
    "disk/files.py": {"get": 3, "put": 3},
    "disk/rows.py": {"get": 1, "iternext": 1, "iterprev": 1, "put": 1},
    "snapshot.py": {"get": 1, "iternext": 1, "iterprev": 1, "value": 2},
}
"""Where values come from LMDB, and go there. All pass `checksums`, but for ``meta`` and the log's tail.
Whoever adds one here looks at that."""


def test_no_other_code_reads_or_writes_rows() -> None:
    store, found = Path(files.__file__).parents[1], dict[str, Counter[str]]()
    methods = {"get", "put", "putmulti", "getmulti", "item", "value", "iternext", "iterprev", "pop", "replace"}
    for file in store.rglob("*.py"):
        used = Counter(
            node.attr
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Attribute) and node.attr in methods
            if re.search(r"(txn|cursor)(\(.*\))?$", ast.unparse(node.value))
        )
        if used:
            found[file.relative_to(store).as_posix()] = used
    assert found == READS_AND_WRITES


@given(at=st.integers(0, 10_000), bits=st.binary(min_size=1, max_size=4).filter(any), key=st.binary(max_size=40))
def test_a_change_of_up_to_four_bytes_in_a_row_is_always_found(at: int, bits: bytes, key: bytes) -> None:
    row = bytearray(key + b"value")
    row += crc32(row).to_bytes(4, "little")
    assert crc32(row) == rows.WHOLE
    at %= len(row) - len(bits) + 1
    for place, byte in enumerate(bits, at):
        row[place] ^= byte
    assert crc32(row) != rows.WHOLE


def test_all_rows_of_a_folder_have_checksums(tmp_path: Path) -> None:
    with fdbqueue.open(f"file:{tmp_path}/new?durability=relaxed") as db:
        fill(db)
        rows = [(row.key, row.value) for row in db.get_range(b"", b"\xff")]
    assert all_whole(tmp_path / "new")
    report = check_pages(f"{tmp_path}/new", lambda key: None)
    assert (report.checked, report.damages) == (True, ())
    with plain(), fdbqueue.open(f"file:{tmp_path}/old?durability=relaxed") as db:
        tr = db.create_transaction()
        for key, value in rows[:100]:
            tr[key] = value
        tr.commit().wait()
    unchanged = {(key, value) for name, key, value in stored(tmp_path / "old") if name == layout.DATA}
    assert unchanged >= set(rows[:100])


def test_a_folder_without_checksums_stays_so(tmp_path: Path) -> None:
    with plain(), opened(tmp_path) as store:
        put(store, *ROWS)
    for _ in range(2):
        with opened(tmp_path) as store:
            assert contents(store) == ROWS
            apply(store, 2, b"b", bytes(8))
            put(store, *ROWS)
    assert not any(crc32(key + value) == rows.WHOLE for _, key, value in stored(tmp_path))
    assert not check_pages(str(tmp_path), lambda key: None).checked


def test_a_database_in_memory_has_none() -> None:
    with opened() as store:
        assert not store.files.dbs.checked


def test_a_changed_row_can_be_read_as_it_is(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(folder, b"b", None)
    with opened(folder, checksums="ignore") as store:
        assert [key for key, _ in contents(store)] == [key for key, _ in ROWS]
        assert "the row b'b' is damaged" in caplog.text
        with pytest.raises(StorageError, match="open in this process with checksums=ignore"):
            Store.open(str(folder), {})


def test_the_check_of_a_file_names_a_changed_row(folder: Path) -> None:
    with fdbqueue.open(f"file:{folder}") as db:
        Queue("orders").enqueue(db, b"x" * 5_000)
    for key in (b"b", b"d"):
        change(folder, key, None)
    found = check_pages(str(folder), lambda key: None).damages
    assert [(damage.begin, damage.end, damage.is_row) for damage in found] == [
        (b"b", b"b\0", True),
        (b"d", b"d\0", True),
    ]


def test_a_changed_format_is_told(folder: Path) -> None:
    change(folder, layout.FORMAT_KEY, layout.FORMAT[:-1], layout.META)
    (damage,) = check_pages(str(folder), lambda key: None).damages
    assert "no format" in damage.what
    with pytest.raises(StorageError, match="its format is"):
        Store.open(str(folder), {})
