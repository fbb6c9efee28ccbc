"""From a request to a commit: `committer` makes many requests one LMDB transaction with one wait for the disk.

`commit_scheduler` decides which thread of a process commits, `process_scheduler` which process. `applying` writes the
mutations, `atomics` computes atomic operations, and `background_committer` makes the commits that no thread waits for.
"""
