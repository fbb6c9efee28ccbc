"""The streaming sink: stores the rows of a batch aside, or writes them at once, exactly once.

Only `fdbqueue.spark` uses it. `sink_batches.py` has the protocol.
"""
