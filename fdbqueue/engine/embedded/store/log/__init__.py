"""The log of recent commits: which keys and ranges each one wrote, for the conflict check and for watches.

`write_set` is the record of one commit. `log_rows` stores records in LMDB. `commit_log` keeps the recent ones in memory
for the check. `committed` keeps the state after a commit readable.
"""
