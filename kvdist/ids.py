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

#: Name of a node; the same after a restart.
NodeId: TypeAlias = str

#: Tells one run of a node from all others; a later run has a higher one (T21).
Incarnation = NewType("Incarnation", int)

#: Name of a lease: 128 random bits, so that nobody can guess one or use an old one by accident.
LeaseId = NewType("LeaseId", bytes)

#: Name that a router gives one request between two nodes, before either has seen it.
TransferId: TypeAlias = str

#: Number of a pull, never used twice by one run of a node.
PullId = NewType("PullId", int)

#: One worker of a node, 0 .. tensor-parallel size - 1.
Rank = NewType("Rank", int)
