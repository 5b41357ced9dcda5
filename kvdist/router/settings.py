"""What a router can be told.

Owns:   the defaults.
Knows nothing of: the command line.
Units:  seconds, bytes, characters, by name.
"""

from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from kvdist.errors import ConfigError
from kvdist.ids import NodeId
from kvdist.web.membership import Role, read_node_id, read_url

#: What becomes of a request for which no prefill node can be had.
WithoutPrefill: TypeAlias = Literal["compute", "fail"]

_ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode", "both": "both"}


@dataclass(frozen=True, slots=True)
class StaticNode:
    """A node that is named beforehand, and doesn't register itself."""

    name: NodeId
    role: Role
    url: str

    @classmethod
    def read(cls, text: str) -> Self:
        """From NAME=ROLE,URL. Raises: ConfigError.

        >>> StaticNode.read("p0=prefill,http://10.0.0.7:8000/")
        StaticNode(name='p0', role='prefill', url='http://10.0.0.7:8000')
        """
        name, _, rest = text.partition("=")
        role, _, url = rest.partition(",")
        try:
            if role not in _ROLES:
                raise ConfigError(f"a role is one of {', '.join(_ROLES)}, and {role!r} isn't")
            return cls(read_node_id(name), _ROLES[role], read_url(url))
        except ConfigError as error:
            roles = "|".join(_ROLES)
            raise ConfigError(
                f"--node is NAME={roles},http://HOST:PORT, and not {text!r}: {error}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """See the flags of `kvdist router`."""

    host: str = "127.0.0.1"
    port: int = 8000
    nodes: tuple[StaticNode, ...] = ()
    #: Who registers has to show it; without one, only this machine's nodes may.
    registry_token: str | None = None
    api_key: str | None = None
    #: Prefill and decode are asked at the same time, and decode reads along.
    overlap: bool = True
    without_prefill: WithoutPrefill = "compute"
    #: Shorter prompts go to a decode node alone; a token counts as four characters.
    min_prefill_chars: int = 64
    #: Nodes of each role that are tried for one request.
    max_tries: int = 3
    #: Until the status of an answer, all tries together, and until each event of a stream.
    answer_s: float = 600.0
    allow_kv_transfer_params: bool = False
    max_body_bytes: int = 32 << 20
    #: What is left then of a router that drains ends with an error.
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if len(names) != len(set(names)):
            raise ConfigError("two nodes have the same name")
