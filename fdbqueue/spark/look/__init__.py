"""A look at a queue: ranges for tasks, their readers, and the columns of items. It takes nothing.

Only `fdbqueue.spark` uses it. Streams read items by the same columns.
"""
