"""Rows on their way into a queue: in memory, in a temporary file, as digests, and as keys.

Only `fdbqueue.spark` uses it. It imports no pyspark, and it commits nothing.
"""
