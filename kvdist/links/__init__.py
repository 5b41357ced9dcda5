"""Real links in place of the simulator's: they carry out what the connector's halves ask for, and
bring events back. They decide nothing.

Read `worker_links` first: the bytes; then `node_links`.
"""
