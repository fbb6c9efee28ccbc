"""Layers: one file, one layer, one recipe over fdbqueue's public names.

A layer keeps all that it needs under the queue's own subspace and calls nothing but what a user of the library could
call, so that a layer of your own can start as a copy of one of these.
"""
