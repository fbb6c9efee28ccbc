"""The line of ready sessions: pointers, slots and gates. It knows no handler and no operator."""
