"""`kv_transfer_params` of a request <-> what it asks of the connector.

Owns:   nothing.
Knows nothing of: HTTP, who sends them. What comes from a client is checked in type and size, and
        names nodes only, never addresses: those are the membership's.
Source: the outer names are those of vLLM's NIXL connector
        (vllm/distributed/kv_transfer/kv_connector/v1/nixl, 0.32), so that routers made for it pass
        them on; ours sit in one object, `kvdist`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvdist.connector.messages import MAX_TOKENS, Ticket
from kvdist.errors import InvalidRequest
from kvdist.ids import Incarnation, LeaseId, NodeId, Rank, TransferId

_MAX_NAME: Final = 256
_LEASE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Lend:
    """Compute this prompt for a peer; with a transfer id it may read along (T11), and whoever made
    it can give back what nobody will come for, though no answer came.
    """

    transfer: TransferId | None = None
    #: False: the transfer id is a name, and the peer comes with the ticket.
    reads_along: bool = True
    #: A node that is said to hold a part of it already, as for `ByHash`.
    hint: NodeId | None = None

    @property
    def has_reader_along(self) -> bool:
        """The peer may come before the prompt is computed."""
        return self.transfer is not None and self.reads_along


@dataclass(frozen=True, slots=True)
class ByTransfer:
    """K/V of a request that another node computes at the same time (T11)."""

    node: NodeId
    transfer: TransferId


@dataclass(frozen=True, slots=True)
class ByHash:
    """K/V that another node is said to hold; a wrong hint costs one round trip."""

    node: NodeId


#: Where a request's K/V can be had.
Source: TypeAlias = Ticket | ByTransfer | ByHash


def write_params(wish: Source | Lend) -> dict[str, Any]:
    """What a request for this carries.

    >>> write_params(ByHash("p0"))
    {'do_remote_prefill': True, 'remote_engine_id': 'p0', 'kvdist': {}}
    """
    if isinstance(wish, Lend):
        ours: dict[str, Any] = {} if wish.transfer is None else {"transfer_id": wish.transfer}
        if not wish.reads_along:
            ours["read_along"] = False
        lend: dict[str, Any] = {"do_remote_decode": True, "kvdist": ours}
        hint = {"do_remote_prefill": True, "remote_engine_id": wish.hint}
        return lend if wish.hint is None else lend | hint
    params: dict[str, Any] = {"do_remote_prefill": True, "remote_engine_id": wish.node}
    match wish:
        case ByHash():
            params["kvdist"] = {}
        case ByTransfer():
            params["kvdist"] = {"transfer_id": wish.transfer}
        case Ticket():
            params["tp_size"] = wish.num_ranks
            params["remote_num_tokens"] = wish.resume_tokens
            params["kvdist"] = {
                "lease": wish.lease.hex(),
                "incarnation": wish.incarnation,
                "remaining_ms": wish.remaining_ms,
            }
    return params


def read_params(params: Mapping[str, Any] | None) -> Source | Lend | None:
    """What a request asks for; None: nothing. Raises: InvalidRequest, naming the field."""
    if params is None:
        return None
    if not isinstance(params, Mapping):
        raise InvalidRequest("kv_transfer_params: not an object")
    ours = {} if params.get("kvdist") is None else params["kvdist"]
    if not isinstance(ours, Mapping):
        raise InvalidRequest("kv_transfer_params.kvdist: not an object")
    transfer = _text(ours, "transfer_id") if "transfer_id" in ours else None
    reads = _flag(params, "do_remote_prefill")
    if _flag(params, "do_remote_decode"):
        reads_along = "read_along" not in ours or _flag(ours, "read_along")
        return Lend(transfer, reads_along, _text(params, "remote_engine_id") if reads else None)
    if not reads:
        return None
    node = _text(params, "remote_engine_id")
    if transfer is not None:
        return ByTransfer(node, transfer)
    if "lease" not in ours:
        return ByHash(node)
    return Ticket(
        _lease(ours),
        node,
        Incarnation(_number(ours, "incarnation", 1 << 63)),
        _number(params, "remote_num_tokens", MAX_TOKENS),
        _number(ours, "remaining_ms", MAX_TOKENS),
        Rank(_number(params, "tp_size", 1 << 16)),
    )


def _flag(params: Mapping[str, Any], name: str) -> bool:
    value = params.get(name)
    if value is not None and type(value) is not bool:
        raise InvalidRequest(f"kv_transfer_params: {name} is true or false")
    return bool(value)


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME:
        raise InvalidRequest(f"kv_transfer_params: {name} is a text of 1 to {_MAX_NAME} letters")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidRequest(f"kv_transfer_params: {name} has half a letter, which can't be sent")
    return value


def _number(params: Mapping[str, Any], name: str, limit: int) -> int:
    value = params.get(name)
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidRequest(f"kv_transfer_params: {name} is a whole number from 0")
    return value


def _lease(params: Mapping[str, Any]) -> LeaseId:
    value = params["lease"]
    try:
        lease = bytes.fromhex(value)
    except (TypeError, ValueError):
        lease = b""
    if len(lease) != _LEASE_BYTES:
        raise InvalidRequest(f"kv_transfer_params: lease is {2 * _LEASE_BYTES} hex digits")
    return LeaseId(lease)
