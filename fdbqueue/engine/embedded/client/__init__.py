"""The client half of the embedded engine: the counterpart of FoundationDB's client library.

A transaction reads its own writes, adds read conflicts, and submits its commit to the store. This half is
independent of LMDB.

- `database`, `transaction`: the entry points. `read_api` and `write_api` are a transaction's two halves.
- `write_buffer`: the uncommitted writes, folded by key (`store/commit/atomics.py`).
- `ryw_iterator`, `segments`, `pages`: reads that see own writes, with the results of a cluster.
- `futures`, `commits`, `pending`: the binding's futures.
- `options`, `special_keys`: options, and the keys under ``\\xff\\xff``.
"""
