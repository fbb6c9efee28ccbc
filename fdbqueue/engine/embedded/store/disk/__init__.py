"""Files: opening a folder, waiting for the disk once per commit, and every way in which that fails.

`files` opens LMDB, `disk` writes commits through, `redo` repeats the last commit after a power cut. `folder_lock`,
`writer_lock`, `lock_owners` and `forks` keep processes apart. `long_keys` stores keys that LMDB is too small for.
"""
