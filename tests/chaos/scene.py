"""What is played: which nodes, over what, what befalls them, and how long.

Owns:   the scenes that have names.
Knows nothing of: processes.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from kvdist.links.marks import MARKS

#: What befalls a node, or its clients.
Deed: TypeAlias = Literal[
    "kill node", "kill worker", "kill both", "stop node", "stop worker", "outlive lease", "end",
    "storm",
]  # fmt: skip
KILLS: Final[tuple[Deed, ...]] = ("kill node", "kill worker", "kill both", "end")
STOPS: Final[tuple[Deed, ...]] = ("stop node", "stop worker")
TRANSPORTS: Final = ("tcp", "shm", "ucx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One play; everything by chance in it comes of `seed`."""

    name: str
    transport: str
    seed: int
    seconds: float
    model: Literal["stub", "tiny"] = "stub"
    #: Clients ask a router, where nodes register; else they ask the nodes, which know each other.
    through_router: bool = False
    deeds: tuple[Deed, ...] = (*KILLS, *STOPS, "storm")
    victims: tuple[str, ...] = ("p0", "d0")
    #: In place of deeds: at each of these marks all that can befall who passes it.
    marks: tuple[str, ...] = ()
    num_blocks: int = 513
    #: What goes wrong with bytes on purpose.
    faults: str = ""
    #: Of a prompt, what is computed in one step.
    chunk_tokens: int = 2048
    lease_s: float = 8.0
    num_clients: int = 8
    #: Between two deeds.
    pause_s: tuple[float, float] = (1.0, 4.0)

    @property
    def title(self) -> str:
        """Names it in a report."""
        return f"{self.name} over {self.transport}, seed {self.seed}"


#: What clients of a play make nobody say, or hardly ever.
_SELDOM: Final = ("refused", "denied", "withdrawn", "still-reading")
_PLAIN: Final = Scene(name="", transport="tcp", seed=0, seconds=0)
#: By name, but for transport, seed and length.
SCENES: Final[dict[str, Scene]] = {
    scene.name: scene
    for scene in (
        replace(_PLAIN, name="pair"),
        replace(_PLAIN, name="router", through_router=True),
        # One sequence fits, and hardly more.
        replace(_PLAIN, name="small pool", through_router=True, num_blocks=80),
        replace(_PLAIN, name="small pool, asked by hand", num_blocks=80),
        # Whoever reads stands still until what it has been promised is over.
        replace(_PLAIN, name="leases", deeds=("outlive lease",), victims=("d0",), lease_s=3.0),
        replace(_PLAIN, name="storms", through_router=True, deeds=("storm",), num_clients=2),
        # What outlives many runs of the other side neither grows nor keeps anything open.
        replace(
            _PLAIN, name="survivor", through_router=True, deeds=("kill both",), victims=("p0",),
            pause_s=(0.5, 1.0),
        ),
        # Both live all the time, though their links don't: they must not grow.
        replace(_PLAIN, name="faults", through_router=True, deeds=("storm",), chunk_tokens=64,
                pause_s=(4.0, 8.0),
                faults="cut-inside=0.01,cut-after=0.01,never=0.05,after-cancel=0.1,drop=0.003"),
        # In the midst of a transfer, which takes several bursts where it is read along.
        replace(_PLAIN, name="marks", chunk_tokens=64, num_clients=4,
                marks=tuple(mark for mark in MARKS if not mark.startswith(_SELDOM))),
        replace(_PLAIN, name="router dies", through_router=True, victims=("router",),
                deeds=("kill node", "kill node", "end", "stop node", "storm")),
        replace(_PLAIN, name="anybody", through_router=True, victims=("router", "p0", "d0"),
                deeds=("kill node", "kill both", "end", "stop node", "storm")),
        replace(_PLAIN, name="tiny model", model="tiny"),
        replace(_PLAIN, name="tiny model, router", model="tiny", through_router=True),
    )
}  # fmt: skip
