"""The log of recent commits: which keys and ranges each one wrote, for the conflict check and for watches.

`write_set` is the record of one commit, `log_rows` how records are stored in LMDB, `commit_log` the check, and
`committed` the state that a held commit left.
"""
