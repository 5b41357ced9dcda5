"""The router: one OpenAI API in front of prefill and decode nodes.

Owns:   nothing.
Knows nothing of: blocks, schedulers, models.
"""
