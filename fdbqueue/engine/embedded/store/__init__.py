"""The store's half of the embedded engine: what FoundationDB's servers do on a cluster.

It keeps keys in LMDB, gives consistent snapshots, and checks each commit for conflicts. It knows no transaction object:
the client hands in a `commit.request`.

- `store`: opens a folder, and is the way in. `snapshot`: one consistent view. `snapshot_reaper` closes old ones.
- `commit/`: from a request to a commit, many at a time.
- `log/`: the recent commits, for the conflict check.
- `disk/`: files, locks, long keys, and the one wait for the disk.
- `notify/`: watches learn of commits, also of other processes.
"""
