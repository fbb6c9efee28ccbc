"""LEVEL 3: agents, which share queues with Python over the SCS Queue protocol, version 0.01.

A shell script, a C program or a microcontroller sends data to an agent type, receives and locks data, and confirms it.
Each agent type is an ordinary queue, ``("agents", type)``, so that library calls, Spark jobs and agents meet there.

Source: SCS Agent Queue, "Queue Protocol version 0.01" (2007).
"""
