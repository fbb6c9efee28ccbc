"""Commits: requests of many threads become one LMDB transaction with one wait for the disk.

`committer` runs the group commit. `scheduling` decides which process commits, and which of its threads. `request` is
what a commit writes, and writes it; `atomics` computes and folds operations. `background_committer` makes the commits
that no thread waits for.
"""
