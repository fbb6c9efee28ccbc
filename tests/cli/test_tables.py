"""The tables of commands: how columns give way on a narrow terminal, and the JSON lines beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from fdbqueue.cli.output import TableColumn, line_of, print_rows, shown_rows, table_of

Row = tuple[str, str, int]
HANDLE = "h" * 60
COLUMNS: tuple[TableColumn[Row], ...] = (
    TableColumn("lease", lambda one: one[0], whole=True),
    TableColumn("value", lambda one: one[1]),
    TableColumn("items", lambda one: f"{one[2]:,}" if one[2] else "", number=True, optional=True),
)


def record(one: Row) -> dict[str, str]:
    return {"lease": one[0], "value": one[1]}


def line(one: Row) -> bytes:
    return line_of(record(one))


@pytest.mark.parametrize(("columns", "is_cut"), [(80, True), (120, False)])
def test_a_column_to_copy_is_never_cut_and_lines_are_printed_instead(
    columns: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    row = (HANDLE, "teapot " * 20, 1_000)
    shown = shown_rows([row], COLUMNS, [line(row)])
    assert (shown == line(row)) is is_cut
    assert HANDLE in shown.decode()
    assert is_cut or "1,000" in shown.decode()


def test_a_column_without_texts_is_left_out_only_if_it_is_optional() -> None:
    table = table_of([("a", "", 0), ("b", "", 0)], COLUMNS)
    assert [str(one.header) for one in table.columns] == ["lease", "value"]


def test_a_text_of_a_user_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "[red]tea[/red] :tea:" in shown_rows([("a", "[red]tea[/red] :tea:", 0)], COLUMNS).decode()


def test_lines_are_printed_as_soon_as_their_rows_are_there(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    seen: list[bytes] = []

    def rows() -> Iterator[Row]:
        yield "a", "x", 0
        seen.append(capfdbinary.readouterr().out)
        yield "b", "y", 0

    assert print_rows(rows(), COLUMNS, record, table=False) == 2
    assert [json.loads(one) for one in seen] == [{"lease": "a", "value": "x"}]
    assert json.loads(capfdbinary.readouterr().out) == {"lease": "b", "value": "y"}


def test_no_row_is_no_table(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert print_rows([], COLUMNS, record, table=True) == 0
    assert capfdbinary.readouterr().out == b""
