"""Streams and claims out of queues: what the driver answers, and what tasks read.

Only `fdbqueue.spark` uses it. `fdbqueue.layers.streams` keeps the batches.
"""
