"""How new items get in: one, or millions.

What is in here
    `appending.py`: the keys of new items. It also keeps the indices that one transaction of a caller has used.
    `bulk.py` cuts values into transactions, and runs several of them at a time. `adaptive_limit.py`: how
    many items fit into one transaction's time. `once.py`: exactly once, although a commit's outcome is unknown.

Who may use it
    `verbs`, and layers by `fdbqueue.lowlevel`.

What it never does
    It takes no item out, and it knows no layer.
"""
