"""Arrow: items out of a queue as Arrow data, and Arrow data into a queue as items.

`Queue` has the verbs: ``to_arrow``, ``to_arrow_batches``, ``to_pandas``, ``to_polars``, ``dequeue_arrow``, and
``enqueue_many`` of a table. They import pyarrow when they are called.

General layout
--------------
`stored.py` reads items of all states in pages. `columns.py` makes record batches of them, and parses many positions at
a time. Spark's looks use both. `reading.py` has the calls behind the verbs of `verbs.py`. `tables.py` turns tables into
values to enqueue. `needs.py` imports pyarrow, or says how to install it, and knows the columns that layers add.
"""
