"""LEVEL 3: agents, which share queues with Python over the SCS Queue protocol, version 0.01.

A shell script, a C program or a microcontroller sends data to an agent type, receives and locks data, and confirms it.
Each agent type is an ordinary queue, ``("agents", type)``, so that library calls, Spark jobs and agents meet there.

General layout
--------------
`words.py` has the lines of the protocol. `dialog.py` is the server's side of a connection, without input and output.
`connection.py` reads and writes for it; `queues.py` and `locks.py` do what the dialog asks for. `server.py` and
`listening.py` accept connections, `tls.py` encrypts them, and `access.py` has the rights of certificates. `client.py`
is the client's side, and `link.py` its connection.

Source: SCS Agent Queue, "Queue Protocol version 0.01" (2007).
"""

from __future__ import annotations

from fdbqueue.agents.access import Access
from fdbqueue.agents.client import AgentClient, Received
from fdbqueue.agents.limits import Limits
from fdbqueue.agents.listening import Tls
from fdbqueue.agents.server import AgentServer, queue_of_type
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
