"""Layers: one file, one layer, one recipe over fdbqueue's public names.

For those who use them: `leases` lends items to consumers that may die, `consumer` runs handlers for them, `backoff` and
`deadletters` are for what fails, `watchdog` for what nobody else would give back. `staged` is for many consumers at one
head, who wait; `relaxed` for those who can do without order. `priority` and `earliest` are other orders.
`subscriptions` are named consumers with conditions (`selectors`). `smart` compares newcomers with what is queued
already; `messages`, `decisions`, `limits`, `monitor` and `resend` go with it. `oplog` logs what was done to a queue.

A layer keeps all that it needs under the queue's own subspace and calls nothing but what a user of the library could
call, so that a layer of your own can start as a copy of one of these. A layer that is too large for a file has a folder
of parts, which users need not know: `leasing` for `layers.leases`, `staging` for `layers.staged`, `subscribing` for
`layers.subscriptions`, `selecting` for `layers.selectors`, `comparing` for `layers.smart`.
"""
