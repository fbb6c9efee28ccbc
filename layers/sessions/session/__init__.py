"""One session: its record, its items, its lease, and the gates that it names."""
