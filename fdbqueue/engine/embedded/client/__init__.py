"""The client's half of the embedded engine: what FoundationDB's client library does on a cluster.

A transaction reads its own writes, adds read conflicts, and hands a commit to the store. Nothing here knows LMDB.

- `database`, `transaction`: where a program begins. `read_api` and `write_api` are a transaction's two halves.
- `write_buffer`, `stacks`: the writes that are not committed yet, folded by key.
- `ryw_iterator`, `segments`, `pages`, `lookahead`: reads over one's own writes, as a cluster answers them.
- `futures`, `values`, `ranges`, `commits`, `watches`, `version_wait`, `pauses`: the binding's futures.
- `options`, `option_table`, `special_keys`: options, and the keys under ``\\xff\\xff``.
"""
