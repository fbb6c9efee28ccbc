"""One bulk job: its keys, its record, its partitions, and each attempt at one of them.

Only `fdbqueue.spark` uses it. It runs in Spark's tasks and on the driver, and imports no pyspark.
"""
