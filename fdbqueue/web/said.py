"""Keep what a page says after a change. Its address only names the message, so a link can make no page speak."""

from __future__ import annotations

import secrets

MOST_KEPT = 100


class Sayings:
    """The last messages that no page has shown so far."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def keep(self, text: str) -> str:
        """Keep a message for the next page; return its name in that page's address."""
        name = secrets.token_urlsafe(12)
        self._told[name] = text
        for old in list(self._told)[:-MOST_KEPT]:
            self._told.pop(old, None)
        return name

    def take(self, name: str) -> str:
        """Return a message and forget it; "" if there is none, as after a reload."""
        return self._told.pop(name, "")
