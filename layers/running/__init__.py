"""What `fdbqueue.layers.consumer` is made of: leases that it holds, threads that keep them, ways into its loop."""
