"""The log of recent commits: which keys and ranges each one wrote, for the conflict check and for watches.

`log_rows` stores the records of commits in LMDB. `commit_log` keeps the recent ones in memory for the check, and
`write_set` is the check. `committed` keeps the state after a commit readable.
"""
