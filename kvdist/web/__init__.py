"""What every HTTP face of kvdist has in common; nodes and the router use it.

Owns:   nothing.
Knows nothing of: nodes, the router.
"""
