"""``fdbqueue health``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fdbqueue.cli import errors
from fdbqueue.cli.metrics import Exclude, Include
from fdbqueue.cli.opening import opened
from fdbqueue.cli.options import AsJson, Url
from fdbqueue.cli.output import wants_table, write_lines
from fdbqueue.cli.tables import print_pairs
from fdbqueue.cli.troubling import next_step, print_troubles, trouble_record
from fdbqueue.cli.values import encode_json

FIGURES = {
    "commit_s": "a commit took, seconds",
    "ahead_s": "times are ahead, seconds",
    "queues": "queues",
    "oldest_age_s": "oldest first item, seconds",
    "oldest_queue": "which is of the queue",
    "version": "version of fdbqueue",
}
"""What a terminal shows beside the troubles, and its words."""


def health(
    max_age: Annotated[
        float | None, typer.Option("--max-age", min=0.0, help="Oldest age of a first item, in seconds. Default: any.")
    ] = None,
    max_commit: Annotated[
        float, typer.Option("--max-commit", min=0.001, help="Longest time of a commit, in seconds.")
    ] = 2.0,
    max_skew: Annotated[
        float,
        typer.Option("--max-skew", min=0.0, help="How far an item's time may be ahead of this clock, in seconds."),
    ] = 5.0,
    patience: Annotated[
        float, typer.Option("--patience", min=0.1, help="How many seconds the database may take for an answer.")
    ] = 5.0,
    include: Include = None,
    exclude: Exclude = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Look whether the database answers, and whether its queues are well. For probes, and for people at night.

    Exits with 0 if all is well, with 1 if there is a problem, and with 3 if the database does not answer. The troubles
    are those of `fdbqueue troubles`, and a slow commit.

    Only problems change the exit code. Warnings, such as dead letters, and notes, such as pauses, are printed.

    Example: fdbqueue health --max-age 600
    """
    from fdbqueue.observe.figures import Wanted
    from fdbqueue.observe.health import Limits, check_health

    try:
        wanted = Wanted(include or (), exclude or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--include / --exclude") from error
    with opened(url, patience=patience) as db:
        report = check_health(db, wanted=wanted, limits=Limits(max_age, max_commit, max_skew))
    if wants_table(as_json):
        print_troubles(report.troubles, report.unmatched)
        shown = {name: value for name, value in report.record().items() if name in FIGURES and value not in (None, "")}
        print_pairs("health", {"well": "yes" if report.ok else "no", **shown}, FIGURES)
    else:
        record: dict[str, Any] = {**report.record(), "troubles": [trouble_record(one) for one in report.troubles]}
        steps = [next_step(one) for one in report.troubles if one.severity == "problem"]
        record["problems"] = [*report.unmatched, *steps]
        write_lines([encode_json(record).encode() + b"\n"])
    if not report.ok:
        raise typer.Exit(errors.EMPTY)
