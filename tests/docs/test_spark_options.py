"""The guides' tables of Spark's options: each option exists, none is left out, and each default is the code's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fdbqueue.spark.batch import options as sink
from fdbqueue.spark.batch.options import parse
from fdbqueue.spark.look import options as readoptions
from fdbqueue.spark.look.options import LOOK_NAMES, STREAM_NAMES, parse_look, parse_stream
from fdbqueue.spark.sink import options as sinkoptions
from fdbqueue.spark.sink.options import parse_sink
from fdbqueue.stored.states import ALL_STATES

TABLE = re.compile(r"^\| option \| default \| meaning \|\n\| --- \| --- \| --- \|\n((?:\|.*\|\n)+)", re.MULTILINE)
SINK_NAMES = {*sinkoptions._OWN, *sink.NAMES} - {"jobId", "delivery", "partitions"}
LEAST = {"url": "fdb:", "queue": "q"}
GUIDES: list[tuple[str, set[str], Callable[[Mapping[str, str]], Any], dict[str, str], Any]] = [
    ("spark.md", set(sink.NAMES), parse, {**LEAST, "jobId": "j"}, sink),
    ("spark-look.md", set(LOOK_NAMES), parse_look, LEAST, readoptions),
    ("spark-stream-out.md", set(STREAM_NAMES), parse_stream, {**LEAST, "streamName": "s"}, readoptions),
    ("spark-stream-in.md", SINK_NAMES, parse_sink, LEAST, sinkoptions),
]
IDS = [one[0] for one in GUIDES]
AS_FOR_A_LOAD = re.compile(r"as for \[a load\]\(spark\.md#options\): (.*?)\.\n", re.DOTALL)
"""The options that a guide leaves to the table of the guide to loads."""
FIELDS = {"streamName": "stream", "from": "begin", "to": "end"}
"""The fields of parsed options that are not named as their option."""
NEEDS = {"levels": {"priorityColumn": "p"}}
"""Options that an option can't do without."""
EVERY_STATE = ",".join(ALL_STATES)


def table(repository: Path, guide: str) -> dict[str, str]:
    """Return the default of each option that a guide's table has."""
    text = (repository / "docs" / "guides" / guide).read_text()
    (rows,) = TABLE.findall(text)
    shared = {name for names in AS_FOR_A_LOAD.findall(text) for name in re.findall(r"`(\w+)`", names)}
    found = (
        {name: default for name, default in table(repository, "spark.md").items() if name in shared} if shared else {}
    )
    for row in rows.splitlines():
        names, default, _ = (cell.strip() for cell in row.strip("|").split("|", 2))
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{guide} has {name} twice"
            found[name] = default.strip("`")
    return found


def value_of(options: Any, name: str) -> Any:
    """Return what the parsed options have for an option."""
    attribute = FIELDS.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)
    return getattr(options if hasattr(options, attribute) else options.rows, attribute)


@pytest.mark.parametrize(("guide", "names", "parsed", "least"), [one[:4] for one in GUIDES], ids=IDS)
def test_a_guide_has_each_option_with_its_default(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    guide: str,
    names: set[str],
    parsed: Callable[[Mapping[str, str]], Any],
    least: dict[str, str],
) -> None:
    monkeypatch.delenv("FDBQUEUE_URL", raising=False)
    defaults = table(repository, guide)
    assert set(defaults) == names
    for name, default in defaults.items():
        without = {other: value for other, value in {**least, **NEEDS.get(name, {})}.items() if other != name}
        if default == "required":
            if name in least:
                with pytest.raises(ValueError, match=f"option {name} is missing"):
                    parsed(without)
        elif name == "url":
            monkeypatch.setenv(default, least["url"])
            assert parsed(without) == parsed(least)
        elif default in ("none", "the query's id"):
            assert value_of(parsed(without), name) is None, name
        else:
            given = EVERY_STATE if default == "all" else default
            assert parsed({**without, name: given}) == parsed(without), (name, default)


@pytest.mark.parametrize(("names", "module"), [(one[1], one[4]) for one in GUIDES], ids=IDS)
def test_the_module_of_the_options_has_each_of_them(names: set[str], module: Any) -> None:
    assert module.__doc__ is not None
    assert names <= set(re.findall(r"``(\w+)``", module.__doc__))


def test_the_drains_table_has_each_argument_with_its_default(repository: Path) -> None:
    pytest.importorskip("pyspark")
    from fdbqueue.spark import drain_to_table

    text = (repository / "docs" / "guides" / "spark-drain.md").read_text()
    rows = dict(re.findall(r"^\| (`.+) \| (.+?) \| .+ \|$", text, re.MULTILINE))
    told = {name: default.strip("`") for names, default in rows.items() for name in re.findall(r"`(\w+)`", names)}
    parameters = inspect.signature(drain_to_table).parameters
    assert set(told) == set(parameters) - {"spark", "url", "queue", "options"}
    for name, default in told.items():
        has = parameters[name].default
        assert default in ("required", "none") or has == default or name == "stream", name
        assert (default == "required") == (has is inspect.Parameter.empty) or name in ("table", "path", "foreach_batch")


@pytest.mark.parametrize(("guide", "names", "parsed", "least"), [one[:4] for one in GUIDES], ids=IDS)
def test_an_empty_option_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    guide: str,
    names: set[str],
    parsed: Callable[[Mapping[str, str]], Any],
    least: dict[str, str],
) -> None:
    monkeypatch.setenv("FDBQUEUE_URL", "fdb:")  # an empty url is not a missing one
    for name in sorted(names):
        given = {**least, name: ""}
        if name == "queueKey":
            del given["queue"]
        with pytest.raises((ValueError, TypeError)):
            parsed(given)
