"""What a queue stores: its keys, and the bytes under them.

What is in here
    `key_table.py`: every key that the library writes. `layout.py`: the keys of one queue, and what reads them.
    `positions.py`: an item's position as bytes. `shapes.py`: what may follow in a key. `items.py`: items and their
    envelopes. `codecs.py`: a user's values as bytes, and what a codec would change. `catalogue.py`:
    which queues a database has. `order.py`: ranks. `counters.py`: counts by atomic adds. `places.py`: where an item
    is, also in a stream's batch, and the keys beside it. `settings.py`, `policies.py` and `looks.py`: a queue's
    settings, and what a process relies on of them.

Who may use it
    `moves`, `writes`, `reads`, `arrow` and `verbs`; layers by `fdbqueue.lowlevel`.

What it never does
    It decides nothing about an item: it moves none, and it commits nothing.
"""
