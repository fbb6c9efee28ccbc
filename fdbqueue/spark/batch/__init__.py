"""Write a DataFrame: its options, its schema, and its columns as rows of a queue, of sessions or of smart checks.

Only `fdbqueue.spark` uses it. Both sinks encode rows by it.
"""
