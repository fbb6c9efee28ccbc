"""``fdbqueue agents``: queues for programs that speak the SCS Queue protocol."""

from __future__ import annotations

import typer

from fdbqueue.cli.agents.confirm import confirm
from fdbqueue.cli.agents.receive import receive
from fdbqueue.cli.agents.run import CONTEXT, run
from fdbqueue.cli.agents.send import send
from fdbqueue.cli.agents.serve import serve
from fdbqueue.cli.helptext import Command, reflowed

agents = typer.Typer(
    no_args_is_help=True,
    help="Serve queues to programs in any language, over the SCS Queue protocol, and be such a program.",
)
for command in (serve, send, receive, confirm):
    agents.command(cls=Command, help=reflowed(command.__doc__))(command)
agents.command(cls=Command, help=reflowed(run.__doc__), context_settings=CONTEXT)(run)
