"""``fdbqueue demo``: a year of flights through a queue, by Spark and several processes, checked at the end.

General layout
--------------
`command.py` is what the command line calls and `stages.py` what it does, in order: `flights.py` unpacks the input
and says what must come out; a loader process enqueues it (`load_spark.py`, or `load_plain.py` without Java);
consumer processes (`consumer.py`) take it out; `results.py` has what they write beside the queue, in the very
transactions that take items out, and so what there is to check. `children.py` starts those processes and starts them
again when they are killed. Everything that a run knows stands in the database: a run that was killed is taken up by
the next one.
"""
