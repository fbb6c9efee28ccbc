"""Commits: requests of many threads become one LMDB transaction with one wait for the disk.

`committer` runs the group commit. `commit_scheduler` decides which thread of a process commits, `process_scheduler`
which process. `applying` writes the mutations, `atomics` computes atomic operations. `background_committer` makes the
commits that no thread waits for.
"""
