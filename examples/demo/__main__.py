"""``python -m examples.demo``: the demo from the repository's folder, as ``make demo`` runs it."""

from __future__ import annotations

import typer

from examples.demo.command import demo
from fdbqueue.cli.errors import Commands
from fdbqueue.cli.helptext import reflowed

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(help=reflowed(demo.__doc__))(demo)

if __name__ == "__main__":
    app(prog_name="python -m examples.demo")
