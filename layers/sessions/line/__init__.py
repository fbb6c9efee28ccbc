"""The line of ready sessions: pointers, shards, slots and gates. It knows no handler and no operator."""
