"""Layers: one file, one layer, one recipe over fdbqueue's public names.

A layer keeps all that it needs under the queue's own subspace and calls nothing but what a user of the library could
call, so that a layer of your own can start as a copy of one of these. A layer that is too large for a file has a folder
of parts, which users need not know: `leasing` for `layers.leases`, `staging` for `layers.staged`, `subscribing` for
`layers.subscriptions`, `selecting` for `layers.selectors`, `comparing` for `layers.smart`.
"""
