"""kvdist: a distributed KV cache for language-model serving with prefill and decode apart.

What is here today is the heart of a node, the block manager: see `kvdist.cache`.
"""

__version__ = "0.1.0"
