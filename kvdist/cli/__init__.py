"""The command line: replays for people.

Owns:   nothing.
Knows nothing of: what a replay does.
"""
