"""What `fdbqueue.layers.subscriptions` is made of: pointers, waiting, delivery at the enqueue, and credit."""
