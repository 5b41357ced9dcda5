"""The handshake over a wire: four frames, then both sides have a session.

Knows nothing of: what the frames prove (`handshake`), any one transport.
"""

import asyncio
import contextlib
import secrets

from transports.api import Peer
from transports.config import SessionConfig
from transports.errors import Refused, RemoteProtocol, TransportError
from transports.frame import Frame, Type, decode
from transports.handshake import (
    NONCE_BYTES,
    Hello,
    check_proof,
    check_token_use,
    judge,
    make_hello,
    parse_hello,
    proof,
)
from transports.ledger import Ledger
from transports.session import Session
from transports.wire import Wire

_PROOF_BYTES = 32


class _TheyRefused(Refused):
    """It needs no answer."""


async def initiate(wire: Wire, config: SessionConfig) -> tuple[Session, Peer]:
    """The side that dialled. Raises: Refused, RemoteProtocol, PeerLost."""
    ours = make_hello(config, secrets.token_bytes(NONCE_BYTES))
    await _send(wire, Type.HELLO, 0, ours.raw)
    answer = await _receive(wire, Type.HELLO, 0)
    try:
        theirs = parse_hello(answer[_PROOF_BYTES:])
        check_token_use(config, theirs)
        check_proof(proof(config, "acceptor", ours, theirs), answer[:_PROOF_BYTES])
        peer = judge(config, theirs, wire.peer_address)
    except Refused as refusal:
        await _refuse(wire, 1, refusal, config)
        raise
    await _send(wire, Type.PROOF, 1, proof(config, "initiator", ours, theirs))
    await _receive(wire, Type.WELCOME, 1)
    return _session(config, theirs), peer


async def respond(wire: Wire, config: SessionConfig) -> tuple[Session, Peer]:
    """The side that was dialled. Raises: Refused, RemoteProtocol, PeerLost."""
    number = 0
    try:
        theirs = parse_hello(await _receive(wire, Type.HELLO, 0))
        check_token_use(config, theirs)
        ours = make_hello(config, secrets.token_bytes(NONCE_BYTES))
        await _send(wire, Type.HELLO, 0, proof(config, "acceptor", theirs, ours) + ours.raw)
        number = 1
        given = await _receive(wire, Type.PROOF, 1)
        check_proof(proof(config, "initiator", theirs, ours), given)
        peer = judge(config, theirs, wire.peer_address)
    except _TheyRefused:
        raise
    except Refused as refusal:
        await _refuse(wire, number, refusal, config)
        raise
    await _send(wire, Type.WELCOME, 1, b"")
    return _session(config, theirs), peer


def _session(config: SessionConfig, theirs: Hello) -> Session:
    return Session(
        config,
        max_meta_bytes=min(config.max_meta_bytes, theirs.max_meta_bytes),
        max_body_bytes=min(config.max_body_bytes, theirs.max_body_bytes),
        eager_bytes=min(config.eager_bytes, theirs.eager_bytes),
        credit=theirs.window_bytes,
        regions_out=Ledger(theirs.max_region_bytes, theirs.max_shared_bytes),
        next_number_out=2,
        next_number_in=2,
    )


async def _send(wire: Wire, type_: Type, number: int, meta: bytes) -> None:
    await wire.send(Frame(type_, number, meta=meta).encode())


async def _refuse(wire: Wire, number: int, refusal: Refused, config: SessionConfig) -> None:
    """Say why, and give the peer time to read it and to hang up: an abort would overtake it."""
    # Well within the handshake's own deadline, which would hide the reason.
    patience_s = min(config.close_s, config.handshake_s / 4)
    with contextlib.suppress(TransportError, TimeoutError):
        async with asyncio.timeout(patience_s):
            await _send(wire, Type.REFUSED, number, str(refusal)[:512].encode())
            await wire.close()
            await wire.recv_head()


async def _receive(wire: Wire, expected: Type, number: int) -> bytes:
    frame = decode(await wire.recv_head())
    if frame.type is Type.REFUSED:
        raise _TheyRefused(f"refused by the peer: {frame.meta[:512].decode(errors='replace')}")
    if frame.type is not expected or frame.number != number or frame.body_bytes:
        raise RemoteProtocol(f"{frame.type.name} in a handshake where {expected.name} is due")
    return frame.meta
