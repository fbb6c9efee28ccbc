"""LEVEL 3: agents, which share queues with Python over the SCS Queue protocol, version 0.01.

A shell script, a C program or a microcontroller sends data to an agent type, receives and locks data, and confirms it.
Each agent type is an ordinary queue, ``("agents", type)``, so that library calls, Spark jobs and agents meet there.

General layout
--------------
`words.py` has the lines of the protocol. `dialog.py` is the server's side of a connection, without input and output.
`connection.py` reads and writes for it, and `wire.py` has its bytes and TLS. `queues.py` does what the dialog asks for,
and has the locks. `server.py` listens, and `access.py` has the rights and limits of clients. `client.py` is the
client's side. `watchdog.py` runs commands, whose processes are in `processes.py`.

Source: SCS Agent Queue, "Queue Protocol version 0.01" (2007).
"""

from __future__ import annotations

from fdbqueue.agents.access import Access, Limits
from fdbqueue.agents.client import AgentClient, Received
from fdbqueue.agents.server import AgentServer, Tls, queue_of_type
from fdbqueue.agents.watchdog import AgentEvent, AgentReport, AgentWatchdog
from fdbqueue.errors import AgentError

__all__ = [
    "Access",
    "AgentClient",
    "AgentError",
    "AgentEvent",
    "AgentReport",
    "AgentServer",
    "AgentWatchdog",
    "Limits",
    "Received",
    "Tls",
    "queue_of_type",
]
