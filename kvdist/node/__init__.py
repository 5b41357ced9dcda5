"""A node process: HTTP in, step plans out; asyncio, no tensors.

Owns:   nothing; read `step.py` first.
Knows nothing of: models, devices; the worker has those.
"""
