"""The demo: a year of flights through a queue, by Spark and several processes, checked at the end.

Run it with ``make demo``, or with ``python -m examples.demo`` in the repository's folder.

General layout
--------------
`command.py` has the options, and `stages.py` runs its stages in order. `flights.py` unpacks the input and computes the
expected output. A loader process enqueues the input (`load_spark.py`, or `load_plain.py` without Java). Consumer
processes (`consumer.py`) take it out. `results.py` has their results: they write these beside the queue, in the same
transactions that take items out. `children.py` starts those processes, and restarts them when they are killed. The
whole state of a run is in the database, so that the next run can continue a killed one.
"""
