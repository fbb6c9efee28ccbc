"""What `fdbqueue.layers.staged` is made of: how processes that want items from one head take turns."""
