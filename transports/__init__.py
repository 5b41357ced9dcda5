"""The floor that moves bytes between two peers: docs/transports.md.

Owns:   nothing; each transport owns its links.
Knows nothing of: kvdist, blocks, requests, tensors, HTTP.

It is a package of its own so that this can be checked: nothing here may import kvdist.
Why it has this name: ADR-0007.
"""
