"""Who runs next: continuous batching over the block manager; pure.

Owns:   nothing; read `scheduler.py` first.
Knows nothing of: what a token means, where bytes lie, how they move.
"""
