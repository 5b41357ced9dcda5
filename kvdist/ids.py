"""A distinct type for each kind of number and name, so that they can't change places.

Owns:   nothing.
Knows nothing of: everything else.
"""

from typing import NewType, TypeAlias

#: Place of a block in the pool, 0 .. num_blocks - 1; 0 is the null block.
BlockId = NewType("BlockId", int)

#: Index of a KV cache group in the configuration.
GroupId = NewType("GroupId", int)

#: Digest of everything that decides a block's K/V: all tokens up to its end and all extra keys.
BlockHash = NewType("BlockHash", bytes)

#: Name of a request, unique among the live ones of a node. Never a client's own id.
RequestId: TypeAlias = str
