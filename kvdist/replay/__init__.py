"""Replays of recorded work against the block manager.

Owns:   nothing.
Knows nothing of: networks, models.
"""
