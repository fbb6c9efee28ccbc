"""How to look at a queue without changing it.

What is in here
    `browse.py`: rows in pages. `check.py`: a recount of everything that a queue owns. `queue_rows.py`: the figures of a
    queue as they are stored, what layers add to its page and its check, and the table of the states of items.
    `remembering.py`: what a process keeps of its earlier looks. `inspecting.py`: a page about one queue, with
    `figures.py` for its charts.

Who may use it
    `verbs`, the command line and notebooks; layers by `fdbqueue.lowlevel`.

What it never does
    It writes no key. Matplotlib is imported when a chart is drawn.
"""
