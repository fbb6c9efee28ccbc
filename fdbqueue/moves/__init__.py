"""What may happen to an item, and what follows from it.

What is in here
    `moves.py`: an item goes from one place to another, or ends. `ends.py`: what layers do at its end.
    Outcomes and groups have their records there, too. Records of items that became available are in `moves.py`.
    `taking.py`: which items a call takes. `opening.py`: values of stored bytes, and bytes of values. `rescue.py`: what
    the keys of an item say that can't be read. `admission.py`: the admission of new items, with the index that the next
    one gets. It also asks for room in a queue with a quota.

Who may use it
    `writes`, `reads`, `arrow` and `verbs`; layers by `fdbqueue.lowlevel`.

What it never does
    It begins no transaction that writes. Each function writes into the caller's transaction.
"""
