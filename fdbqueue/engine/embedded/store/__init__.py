"""The store's half of the embedded engine: it does the work of FoundationDB's servers.

It stores keys in LMDB, provides consistent snapshots, and checks each commit for conflicts. It has no transaction
object: the client submits a `commit.request`.

- `store`: opens a folder; the entry point. `snapshot`: one consistent view, which is closed when it gets old.
- `commit/`: from a request to a commit, many requests at a time.
- `commit_log`: the recent commits, for the conflict check.
- `disk/`: files, locks, long keys, and the one wait for the disk.
- `notification`: reports commits, also of other processes, to watches.
"""
