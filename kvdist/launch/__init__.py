"""A whole cluster on one machine: processes that are started, watched and ended together.

Owns:   nothing.
Knows nothing of: what the processes do.
"""
