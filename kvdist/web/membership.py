"""What a node says of itself to a registry, and what it hears of the others.

Owns:   the names, types and limits of the fields.
Knows nothing of: who keeps them.

    POST   {registry}/registry/nodes     a `Member`, every BEAT_S at least; answered with `Members`
    DELETE {registry}/registry/nodes/{node_id}?incarnation=N     it ends
    409    a later incarnation of this node is there: the one who asked has to end (T21)
"""

import re
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from kvdist.errors import ConfigError
from kvdist.ids import NodeId

#: So often a node says that it is there; more often where nodes come and go.
BEAT_S: Final = 2.0
#: When it has said nothing for so long it gets nothing new ...
SILENT_S: Final = 6.0
#: ... and after so long it is gone, and nobody waits for it. A machine with far too much to do
#: keeps a process from its turn for seconds, and what that node is doing isn't lost for it.
EXPIRES_S: Final = 20.0
#: Nodes of one registry.
MAX_MEMBERS: Final = 1024

#: It stands in paths, where names of dots alone mean something else.
NODE_ID: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$"
#: Where a node serves clients.
API: Final = r"^https?://[^\s/?#@]{1,255}$"

Role: TypeAlias = Literal["prefill", "decode", "both"]


class Member(BaseModel):
    """One run of a node."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    node_id: Annotated[str, Field(pattern=NODE_ID)]
    #: A later run has a larger one.
    incarnation: Annotated[int, Field(ge=0, lt=1 << 63)]
    role: Role
    #: The name that its answers tell.
    model: Annotated[str, Field(min_length=1, max_length=1024)]
    api: Annotated[str, Field(pattern=API)]
    #: Where other nodes reach it.
    control: Annotated[str, Field(pattern=r"^[a-z]+://\S{1,1024}$")]
    #: New work is taken.
    ready: bool


class Members(BaseModel):
    """All nodes that are there, whoever asks among them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    members: Annotated[list[Member], Field(max_length=MAX_MEMBERS)]
    #: A node that says nothing for so long is gone.
    expires_s: Annotated[float, Field(gt=0, le=3600)]


def read_node_id(text: str) -> NodeId:
    """What a node may be called. Raises: ConfigError."""
    if not re.fullmatch(NODE_ID, text):
        raise ConfigError(
            f"a node's name is at most 128 letters, digits and any of _ . : - (these three not "
            f"first), and {text!r} isn't"
        )
    return NodeId(text)


def read_url(text: str) -> str:
    """Of a router or a node: http://HOST:PORT, without a path. Raises: ConfigError.

    >>> read_url("http://10.0.0.7:8000/")
    'http://10.0.0.7:8000'
    """
    url = text.rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = bool(re.fullmatch(API, url) and parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_good = False
    if not is_good:
        raise ConfigError(f"an address is http://HOST:PORT, and {text!r} isn't")
    return url
