"""What a node does for others by its role, which may change: it lends, reads, or both.

Owns:   the role, and how far its duties have ended.
Knows nothing of: leases, pulls; whoever drives it says when nothing of a duty is left.
"""

from kvdist.connector.machine import Machine
from kvdist.connector.messages import Role
from kvdist.connector.tables.duty import DUTY, Effect, Event, State
from kvdist.errors import WrongRole


class Duties:
    """To lend (`PREFILL`) and to read (`DECODE`)."""

    def __init__(self, role: Role) -> None:
        #: What it is to be, and what peers hear.
        self.role = Role.BOTH
        self._duties = {
            duty: Machine(DUTY, duty.name.lower()) for duty in (Role.PREFILL, Role.DECODE)
        }
        self._accepts = {Role.PREFILL: True, Role.DECODE: True}
        self.change(role)
        for duty in self._duties:
            self.idle(duty)

    @property
    def lends(self) -> bool:
        """Whether new leases are granted; those that were promised are, all the same."""
        return self._accepts[Role.PREFILL]

    def check(self, duty: Role) -> None:
        """Raises: WrongRole if what is new of that duty has to go elsewhere."""
        if not self._accepts[duty]:
            does = "computes nothing for" if duty is Role.PREFILL else "reads nothing of"
            raise WrongRole(
                f"this node's role is {self.role.name.lower()}: it {does} others; "
                f"ask one whose role is {duty.name.lower()} or both"
            )

    def change(self, role: Role) -> bool:
        """The role is another from now on; True: peers have to hear of it."""
        before, self.role = self.role, role
        effects: list[Effect] = []
        for duty, machine in self._duties.items():
            had, has = _has(before, duty), _has(role, duty)
            if had != has:
                found = machine.handle(Event.TAKE if has else Event.LEAVE)
                if Effect.ACCEPT in found or Effect.REFUSE in found:
                    self._accepts[duty] = Effect.ACCEPT in found
                effects += found
        return Effect.ANNOUNCE in effects

    def idle(self, duty: Role) -> bool:
        """Nothing of that duty is left; True: the host has to hear that it is over."""
        machine = self._duties[duty]
        return machine.state is State.ENDING and Effect.SAY_OVER in machine.handle(Event.IDLE)

    def is_ending(self, duty: Role) -> bool:
        """Whether what was accepted goes on to its end."""
        return self._duties[duty].state is State.ENDING

    def is_over(self, duty: Role) -> bool:
        """Whether nothing of it is left."""
        return self._duties[duty].state is State.OFF


def _has(role: Role, duty: Role) -> bool:
    return role.lends if duty is Role.PREFILL else role.reads
