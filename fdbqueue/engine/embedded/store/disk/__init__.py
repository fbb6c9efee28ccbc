"""Files: open a folder, wait for the disk once per commit, and handle every failure.

`files` opens LMDB. `disk` writes commits to the disk, and `redo` repeats the last commit after a power cut.
`folder_lock`, `writer_lock`, `lock_owners` and `forks` keep processes apart. `long_keys` stores keys that are too long
for LMDB.
"""
