"""The guides' tables of Spark's options are those of the code, and each default is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from fdbqueue.spark import options
from fdbqueue.spark.options import LOAD, LOOK, SINK, STREAM, Option, Use, parse

TABLE = re.compile(r"^\| option \| default \| meaning \|\n\| --- \| --- \| --- \|\n((?:\|.*\|\n)+)", re.MULTILINE)
LEAST = {"url": "fdb:", "queue": "q"}
GUIDES: list[tuple[str, Use, dict[str, str]]] = [
    ("spark.md", LOAD, {**LEAST, "jobId": "j"}),
    ("spark-look.md", LOOK, LEAST),
    ("spark-stream-out.md", STREAM, {**LEAST, "streamName": "s"}),
    ("spark-stream-in.md", SINK, LEAST),
]
IDS = [one[0] for one in GUIDES]
AS_FOR_A_LOAD = re.compile(r"as for \[a load\]\(spark\.md#options\): (.*?)\.\n", re.DOTALL)
"""The options that a guide leaves to the table of the guide to loads."""
NEEDS = {"levels": {"priorityColumn": "p"}}
"""Options that an option can't do without."""


def told(row: Option) -> str:
    """Return an option as a guide's table has it."""
    default = f"`{row.default}`" if row.default is not None and row.told == "none" else row.told
    return f"| `{row.name}` | {default} | {row.meaning} |"


@pytest.mark.parametrize(("guide", "use"), [one[:2] for one in GUIDES], ids=IDS)
def test_a_guide_has_the_table_of_its_options(repository: Path, guide: str, use: Use) -> None:
    text = (repository / "docs" / "guides" / guide).read_text()
    (rows,) = TABLE.findall(text)
    shared = {name for names in AS_FOR_A_LOAD.findall(text) for name in re.findall(r"`(\w+)`", names)}
    own = options.of(use).values()
    assert shared <= {row.name for row in own if LOAD in row.of}
    assert rows.splitlines() == [told(row) for row in own if row.name not in shared]


@pytest.mark.parametrize(("guide", "use", "least"), GUIDES, ids=IDS)
def test_an_option_has_its_default(
    monkeypatch: pytest.MonkeyPatch, guide: str, use: Use, least: dict[str, str]
) -> None:
    monkeypatch.delenv("FDBQUEUE_URL", raising=False)
    for row in options.of(use).values():
        without = {other: value for other, value in {**least, **NEEDS.get(row.name, {})}.items() if other != row.name}
        if row.told == "required":
            with pytest.raises(ValueError, match=f"option {row.name} is missing"):
                parse(use, without)
        elif row.name == "url":
            monkeypatch.setenv("FDBQUEUE_URL", least["url"])
            assert parse(use, without) == parse(use, least)
        elif row.default is None:
            expected = "value" if row.name == "valueColumn" else None
            assert getattr(parse(use, without), row.attribute) == expected, row.name
        else:
            assert parse(use, {**without, row.name: row.default}) == parse(use, without), row.name


def test_the_drains_table_has_each_argument_with_its_default(repository: Path) -> None:
    pytest.importorskip("pyspark")
    from fdbqueue.spark import drain_to_table

    text = (repository / "docs" / "guides" / "spark-drain.md").read_text()
    rows = dict(re.findall(r"^\| (`.+) \| (.+?) \| .+ \|$", text, re.MULTILINE))
    says = {name: default.strip("`") for names, default in rows.items() for name in re.findall(r"`(\w+)`", names)}
    parameters = inspect.signature(drain_to_table).parameters
    assert set(says) == set(parameters) - {"spark", "url", "queue", "options"}
    for name, default in says.items():
        has = parameters[name].default
        assert default in ("required", "none") or has == default or name == "stream", name
        assert (default == "required") == (has is inspect.Parameter.empty) or name in ("table", "path", "foreach_batch")


@pytest.mark.parametrize(("guide", "use", "least"), GUIDES, ids=IDS)
def test_an_empty_option_is_refused(
    monkeypatch: pytest.MonkeyPatch, guide: str, use: Use, least: dict[str, str]
) -> None:
    monkeypatch.setenv("FDBQUEUE_URL", "fdb:")  # an empty url is not a missing one
    for name in (row.name for row in options.of(use).values()):
        given = {**least, name: ""}
        if name == "queueKey":
            del given["queue"]
        with pytest.raises((ValueError, TypeError)):
            parse(use, given)
