"""How the demo fails."""

from __future__ import annotations

from fdbqueue.errors import FdbQueueError


class DemoError(FdbQueueError):
    """The demo can't go on; the message says what to do."""
