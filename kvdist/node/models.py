"""Which models a node answers for: one, under one or more names.

Owns:   the names.
Knows nothing of: weights.
"""

from dataclasses import dataclass, field
from time import time

from kvdist.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class Models:
    """The first name is the one that answers tell."""

    names: tuple[str, ...]
    #: Tokens of the longest sequence.
    max_model_len: int
    #: Seconds since 1970.
    created: int = field(default_factory=lambda: int(time()))

    def check(self, asked: str | None) -> str:
        """The name to answer under. Raises: UnknownModel."""
        if asked is None:
            return self.names[0]
        if asked not in self.names:
            raise UnknownModel(f"the model {asked!r} does not exist; there is {self.names[0]!r}")
        return asked
