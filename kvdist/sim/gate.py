"""Messages that a script keeps back, until it lets them go.

Owns:   what is kept.
Knows nothing of: what messages are about; who sent them.
"""

from collections.abc import Callable


class Gate:
    """For one cluster; open until it is told what to keep."""

    def __init__(self) -> None:
        self._kinds: tuple[type, ...] = ()
        self._kept: list[Callable[[], None]] = []

    def keep(self, *kinds: type) -> None:
        """From now on messages of these kinds, and no others, are kept back."""
        self._kinds = kinds

    def stops(self, message: object, deliver: Callable[[], None]) -> bool:
        """Whether this one is kept; then `deliver` is what brings it to its receiver."""
        if isinstance(message, self._kinds):
            self._kept.append(deliver)
            return True
        return False

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def drop(self) -> None:
        """All that is kept is lost, and nothing more is kept."""
        self._kinds, self._kept = (), []

    def let_go(self) -> None:
        """All that is kept arrives now, in order, and nothing more is kept."""
        kept = self._kept
        self.drop()
        for deliver in kept:
            deliver()
