"""Look at sessions: list and count them, and check that sessions, items, line and gates fit together."""
