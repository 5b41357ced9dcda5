"""What passed over wires, in a file, and what it meant.

Owns:   the format of recordings.
Knows nothing of: any one transport, clocks (one is passed in).
Units:  bytes; times are nanoseconds in files, seconds elsewhere. Integers are little-endian.

    file    "kxrecord" version 2 | entries
    entry   what 1 | flags 1 | wire 4 | length 4 | time 8 | size 8 | crc 4 | entry crc 4 | data
    what    0 head sent, 1 body sent, 2 head received, 3 body received
    flags   1: the data is the body; a head always has its data

The entry's crc covers the 30 bytes before it. `size` and `crc` (crc32) are those of the head or
body, whose data is `length` bytes: all of it, or none. A file that breaks off ends in an error,
after all whole entries. A frame of which only a part was sent (`faulty`) isn't told.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from transports.base import WireTransport
from transports.buffers import crc, total
from transports.config import SessionConfig
from transports.errors import BadRecording, PeerLost, RemoteProtocol
from transports.frame import HEAD_BYTES, MAX_META_BYTES, Flag, Frame, Type, decode
from transports.handshake import Hello, parse_hello
from transports.ledger import Ledger
from transports.session import Session
from transports.wire import Wire
from transports.wrapped import WrappedTransport, WrappedWire

MAGIC: Final = b"kxrecord\x02"
_ENTRY: Final = struct.Struct("<BBIIQQI")
_CRC: Final = struct.Struct("<I")
_PROOF_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A head or a body that passed over a wire."""

    sent: bool
    is_body: bool
    wire: int
    time_s: float
    size: int
    crc: int
    data: bytes | None  #: None for a body that wasn't kept


class RecordingTransport(WrappedTransport):
    """Writes down what passes over its wires; `clock` returns seconds. The file stays open. If it
    can't be written, the links end: nothing passes that isn't in it.
    """

    def __init__(
        self,
        inner: WireTransport,
        file: BinaryIO,
        clock: Callable[[], float],
        *,
        keep_bodies: bool = False,
    ) -> None:
        super().__init__(inner)
        self.keep_bodies = keep_bodies
        self._file = file
        self._clock = clock
        self._began = clock()
        self._num_wires = 0
        #: Why no more can be written.
        self._failed = ""
        file.write(MAGIC)

    def wrap(self, wire: Wire) -> Wire:
        """See `WrappedTransport.wrap`."""
        number, self._num_wires = self._num_wires, self._num_wires + 1
        return _RecordingWire(wire, self, number)

    def write(self, what: int, wire: int, views: Sequence[memoryview]) -> None:
        """Add an entry. Raises: PeerLost if the file has failed, now or before."""
        if self._failed:
            raise PeerLost(self._failed)
        is_body, size = bool(what & 1), total(views)
        data = b"" if is_body and not self.keep_bodies else b"".join(views)
        time_ns = max(0, round((self._clock() - self._began) * 1e9))
        fixed = _ENTRY.pack(
            what, is_body and bool(data), wire, len(data), time_ns, size, crc(views)
        )
        try:
            self._file.write(b"".join((fixed, _CRC.pack(zlib.crc32(fixed)), data)))
        except (OSError, ValueError) as error:  # a full disk, a file that was closed
            self._failed = f"the link can't be recorded any more: {error}"
            raise PeerLost(self._failed) from None


class _RecordingWire(WrappedWire):
    def __init__(self, inner: Wire, recording: RecordingTransport, number: int) -> None:
        super().__init__(inner)
        self._recording = recording
        self._number = number

    async def send(self, head: bytes, body: Sequence[memoryview] = ()) -> None:
        self._recording.write(0, self._number, [memoryview(head)])
        if total(body):
            self._recording.write(1, self._number, body)
        await self.inner.send(head, body)

    async def recv_head(self) -> bytes:
        head = await self.inner.recv_head()
        self._recording.write(2, self._number, [memoryview(head)])
        return head

    async def recv_body(self, into: Sequence[memoryview]) -> None:
        await self.inner.recv_body(into)
        self._recording.write(3, self._number, into)


def read_recording(file: BinaryIO, *, max_body_bytes: int = 64 << 20) -> Iterator[Entry]:
    """The entries of a file. Raises: BadRecording; a body beyond the limit is one reason."""
    if file.read(len(MAGIC)) != MAGIC:
        raise BadRecording("no recording, or of another version")
    while fixed := file.read(_ENTRY.size + _CRC.size):
        if len(fixed) < _ENTRY.size + _CRC.size:
            raise BadRecording("breaks off within an entry")
        what, flags, wire, length, time_ns, size, checksum = _ENTRY.unpack_from(fixed)
        if _CRC.unpack_from(fixed, _ENTRY.size) != (zlib.crc32(fixed[: _ENTRY.size]),):
            raise BadRecording("an entry is corrupt")
        is_body = bool(what & 1)
        if what > 3 or flags > is_body:
            raise BadRecording("an entry of an unknown kind")
        kept = bool(flags) or not is_body
        limit = max_body_bytes if is_body else HEAD_BYTES + MAX_META_BYTES
        if length != (size if kept else 0) or length > limit:
            raise BadRecording(f"an entry with {length} bytes")
        data = file.read(length)
        if len(data) < length:
            raise BadRecording("breaks off within an entry")
        if kept and zlib.crc32(data) != checksum:
            raise BadRecording("an entry's data is corrupt")
        yield Entry(what < 2, is_body, wire, time_ns / 1e9, size, checksum, data if kept else None)


@dataclass(frozen=True, slots=True)
class Step:
    """A frame, and what it meant to the side that recorded."""

    time_s: float
    sent: bool
    frame: Frame | None  #: None if it was no frame
    meaning: str


class Replay:
    """Takes the entries of one wire in order, and feeds them to a session as the link did."""

    def __init__(self) -> None:
        self._hellos: list[tuple[bool, Hello]] = []
        self._session: Session | None = None
        #: The last of the peer's offers that was accepted or refused.
        self._decided = 0
        #: The last head in each direction, until its body has passed; by `Entry.sent`.
        self._last: dict[bool, Frame | None] = {}

    def feed(self, entry: Entry) -> Step:
        """What an entry means. Raises: BadRecording if no link can have recorded that."""
        try:
            if entry.is_body:
                return self._body(entry)
            assert entry.data is not None
            frame = self._last[entry.sent] = decode(entry.data)
            if frame.type <= Type.REFUSED:
                meaning = self._greet(entry.sent, frame)
            elif self._session is None:
                raise RemoteProtocol(f"{frame.type.name} before the handshake was over")
            elif entry.sent:
                meaning = self._sent(self._session, frame)
            else:
                meaning = _describe(self._session.receive(frame))
        except RemoteProtocol as error:
            if entry.sent:
                raise BadRecording(f"sent: {error}") from error
            last = self._last.get(entry.sent)
            return Step(entry.time_s, entry.sent, last, f"breaks the protocol: {error}")
        return Step(entry.time_s, entry.sent, frame, meaning)

    def _body(self, entry: Entry) -> Step:
        frame = self._last.get(entry.sent)
        if frame is None or frame.type not in (Type.MESSAGE, Type.BODY):
            raise RemoteProtocol("a body without a head")
        if frame.body_bytes != entry.size:
            raise RemoteProtocol(f"a body of {entry.size} bytes, {frame.body_bytes} announced")
        if Flag.BODY_CRC in frame.flags and frame.body_crc != entry.crc:
            raise RemoteProtocol("a body is corrupt")
        self._last[entry.sent] = None
        done = ""
        session = self._session
        if not entry.sent and frame.type is Type.BODY and session and session.landing:
            done = ", the last" if session.landed(entry.size) else ""
        return Step(entry.time_s, entry.sent, frame, f"{entry.size} bytes of body{done}")

    def _greet(self, sent: bool, frame: Frame) -> str:
        if frame.type is not Type.HELLO:
            return f"{frame.type.name} {frame.meta.decode(errors='replace')!r:.80}"
        if len(self._hellos) == 2:
            raise RemoteProtocol("a third HELLO")
        hello = parse_hello(frame.meta[_PROOF_BYTES:] if self._hellos else frame.meta)
        self._hellos.append((sent, hello))
        if len(self._hellos) == 2:
            self._session = self._open()
        return f"HELLO from {hello.node_id!r}, incarnation {hello.incarnation!r}"

    def _open(self) -> Session:
        ours = [hello for sent, hello in self._hellos if sent]
        theirs = [hello for sent, hello in self._hellos if not sent]
        if len(ours) != 1 or len(theirs) != 1:
            raise BadRecording("both HELLOs from one side")
        config = SessionConfig(
            node_id=ours[0].node_id,
            incarnation=ours[0].incarnation,
            window_bytes=ours[0].window_bytes,
            eager_bytes=ours[0].eager_bytes,
            max_meta_bytes=ours[0].max_meta_bytes,
            max_body_bytes=ours[0].max_body_bytes,
            max_region_bytes=ours[0].max_region_bytes,
            max_shared_bytes=ours[0].max_shared_bytes,
        )
        return Session(
            config,
            max_meta_bytes=min(ours[0].max_meta_bytes, theirs[0].max_meta_bytes),
            max_body_bytes=min(ours[0].max_body_bytes, theirs[0].max_body_bytes),
            eager_bytes=min(ours[0].eager_bytes, theirs[0].eager_bytes),
            credit=theirs[0].window_bytes,
            regions_out=Ledger(theirs[0].max_region_bytes, theirs[0].max_shared_bytes),
            next_number_out=2,
            next_number_in=2,
        )

    def _decide(self, session: Session, offer: int) -> None:
        """Note a verdict: they are given in order, each after the last body has come."""
        if session.landing is not None or not self._decided < offer <= session.last_offer_in:
            raise BadRecording(f"offer {offer} can't have been decided on")
        self._decided = offer

    def _sent(self, session: Session, frame: Frame) -> str:
        """Note what the recorded side did."""
        if frame.number != session.next_number_out:
            raise BadRecording(f"frame {frame.number} was sent, {session.next_number_out} is due")
        session.next_number_out += 1
        match frame.type:
            case Type.MESSAGE:
                session.pay(len(frame.meta), frame.body_bytes)
            case Type.OFFER:
                session.pay(len(frame.meta), 0)
                session.next_offer = frame.argument + 1
            case Type.ACCEPT:
                self._decide(session, frame.argument)
                # The peer may have withdrawn it while this frame waited to be written.
                if frame.argument in session.undecided:
                    session.accept(frame.argument)
            case Type.REFUSE:
                self._decide(session, frame.argument)
                session.refuse(frame.argument)
            case Type.CREDIT:
                session.granted += frame.argument
            case Type.REGION:
                session.regions_out.share(frame.body_bytes)
            case Type.UNSHARE:
                session.regions_out.close(frame.argument)
            case Type.UNSHARED:
                session.regions_in.forget(frame.argument)
            case _:
                pass
        return _describe(frame)


def replay(entries: Iterable[Entry], *, wire: int = 0) -> Iterator[Step]:
    """What the frames of one wire meant to the side that recorded them, up to its peer's first
    offence. Raises: BadRecording.
    """
    told = Replay()
    for entry in entries:
        if entry.wire == wire:
            step = told.feed(entry)
            yield step
            if step.meaning.startswith("breaks the protocol"):
                return


def _describe(frame: Frame) -> str:
    """One line for people."""
    said = f"{frame.number} {frame.type.name}"
    if frame.type in (Type.MESSAGE, Type.OFFER):
        return f"{said} of kind {frame.kind}, meta {len(frame.meta)}, body {frame.body_bytes}"
    if frame.type is Type.BODY:
        return f"{said} of offer {frame.argument}, {frame.body_bytes} bytes"
    return f"{said} {frame.argument}" if frame.argument else said
