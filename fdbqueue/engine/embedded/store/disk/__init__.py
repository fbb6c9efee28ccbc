"""Files: open a folder, wait for the disk once per commit, and handle every failure.

`files` opens LMDB. `disk` writes commits to the disk, and repeats the last commit after a power cut. `locks` and
`forks` keep processes apart. `rows` has checksums, and keys that are too long for LMDB.
"""
