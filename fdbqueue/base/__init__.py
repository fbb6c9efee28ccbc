"""The ground floor: small things that every other room uses.

What is in here
    `position.py`: the identity of an item, and what a bulk enqueue did. `reprs.py`: how objects look as text,
    and as HTML in a notebook. `times.py`: seconds into microseconds. `arguments.py`: checks of a caller's arguments.
    `aside.py`: a file that appears when it is complete. `contributions.py`: what layers add to rooms below them.
    `starting.py`: how a command ends that is interrupted while Python imports it.

Who may use it
    Every room of the library.

What it never does
    It reads no database, and it imports no other room.
"""
