"""Models to try a node against: contents of blocks as numbers, a worker without tensors.

Owns:   nothing.
Knows nothing of: real devices and networks.
"""
