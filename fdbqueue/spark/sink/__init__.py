"""The streaming sink: stores the rows of a batch aside, or writes them at once, exactly once.

Only `fdbqueue.spark` uses it. `writer.py` is what Spark calls; `staging.py` and `at_once.py` have the protocols.
"""
