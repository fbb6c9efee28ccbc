"""A user's mistakes: type checkers report each line that has a comment, and no other."""

import fdbqueue
from fdbqueue import Queue, Transaction
from fdbqueue.layers import Consumer, Lease, Leases, Tasks

db = fdbqueue.open("memory:")
texts = Queue("texts", codec="str")


@fdbqueue.transactional
def add(tr: Transaction, text: str) -> None:
    texts.enqueue(tr, text)


db.enqueue("text")  # a database is no queue
db[b"key"] = "text"  # values are bytes
texts.enqueue(db, b"bytes")  # another type than the codec's
texts.enqueue(db, "text", header={"a": 1})  # no such parameter
texts.enqueue("text")  # nothing to enqueue in
texts.dequeue(db).value  # None, if the queue is empty
add(db, 7)  # another type than the function's
add("text", "text")  # neither a transaction nor a database
Queue("texts", codec=7)  # no codec
Leases(texts).enqueue(db, 7)  # another type than the codec's
Leases(texts).enqueue(db, "text", dely=3)  # no such parameter


def double(lease: Lease[int]) -> int:
    return lease.value * 2


Consumer(Leases(texts), double)  # a handler of other values
Consumer(Leases(texts), lambda lease: lease.value + 1)  # a handler that adds numbers

app = Tasks("typed mistakes")


@app.task
def triple(number: int) -> int:
    return number * 3


triple("3")  # another type than the parameter's
triple.enqueue(db, "3")  # another type than the parameter's
triple.enqueue(db)  # an argument is missing
triple.enqueue(db, 3, delay=5)  # no such parameter: configure(delay=5)
triple.enqueue(3)  # nothing to enqueue in
triple.enqueue(db, 3).result().upper()  # the result is a number
triple.call(3, 4)  # an argument too many
app.task(retires=3)  # no such option
app.periodic("* * * * *")(len)  # no task
