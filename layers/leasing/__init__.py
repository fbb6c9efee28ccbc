"""What `fdbqueue.layers.leases` is made of: moves between an item's places, and the timers that cause some of them."""
