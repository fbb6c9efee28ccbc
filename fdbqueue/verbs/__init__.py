"""The verbs: what a user calls.

What is in here
    `queue.py`: `Queue`. `by_position.py`: the verbs that name items by their positions, and `editing.py`, which does it
    in one transaction. `administered.py`: the verbs of operators. `queues.py` lists the queues of a database, and
    `renaming.py` gives one another name.

Who may use it
    Everyone, through `fdbqueue`; layers by `fdbqueue.lowlevel`.

What it never does
    It defines no key and no format: those are in `stored`. How a verb waits is in `engine/verb.py`.
"""
