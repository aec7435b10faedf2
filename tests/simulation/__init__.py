"""Nodes, a store, a network and their users on virtual time, with faults at seeded moments.

`world.py` has the nodes and their faults, `network.py` the connections, `followers.py` the readers and what they check.
"""
