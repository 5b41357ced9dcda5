"""What nodes, and their workers, say to each other.

Owns:   nothing; messages are frozen values.
Knows nothing of: how they are encoded (`codec`), who sends them when.
Units:  tokens; a span of tokens is (first, one past the last).
Limits: every size is bounded where it is declared, so that a peer can't make us keep more.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, TypeAlias

from kvdist.ids import BlockHash, BlockId, Incarnation, LeaseId, PullId, Rank

#: The version that we speak, and the oldest that we still understand.
VERSION = 2
OLDEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class AtMost:
    """Of a number its value, of a text, bytes or tuple its length."""

    limit: int


@dataclass(frozen=True, slots=True)
class Since:
    """The version that brought a field; older peers neither send nor get it. Of kinds of messages
    `since` says so.
    """

    version: int


MAX_GROUPS = 1024
MAX_TOKENS = 1 << 40
MAX_LIST = 1 << 16
#: More than two nodes of most groups can differ in.
MAX_REFUSALS = 1 << 13
#: Of all tables of one message together: so many fit whatever their names are.
MAX_BLOCKS = 1 << 20

Count: TypeAlias = Annotated[int, AtMost(MAX_TOKENS)]
Name: TypeAlias = Annotated[str, AtMost(256)]
Reason: TypeAlias = Annotated[str, AtMost(512)]
#: Of one group: tokens [first, last) whose K/V are wanted; empty if none.
TokenSpan: TypeAlias = tuple[Count, Count]
TokenSpans: TypeAlias = Annotated[tuple[TokenSpan, ...], AtMost(MAX_GROUPS)]
#: `[group][block]`, 0 where a group skips a position.
Blocks: TypeAlias = Annotated[
    tuple[Annotated[tuple[Annotated[BlockId, AtMost(1 << 26)], ...], AtMost(MAX_LIST)], ...],
    AtMost(MAX_GROUPS),
]
Lease: TypeAlias = Annotated[LeaseId, AtMost(16)]
Run: TypeAlias = Annotated[Incarnation, AtMost(1 << 63)]
PullNumber: TypeAlias = Annotated[PullId, AtMost(1 << 63)]
RankNumber: TypeAlias = Annotated[Rank, AtMost(1 << 16)]
Heads: TypeAlias = tuple[Annotated[int, AtMost(1 << 16)], Annotated[int, AtMost(1 << 16)]]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A lease, as its reader needs it: small, since the blocks are listed when a pull opens."""

    lease: Lease
    node: Name
    incarnation: Run
    #: Tokens from the start whose K/V the lease covers; every group can resume exactly there (T6).
    resume_tokens: Count
    #: How long the lease waits, from when the ticket left (never a date).
    remaining_ms: Count
    #: The owner's workers; where they are reached is known from the membership, never from here.
    num_ranks: RankNumber


# -- before all else -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupPrint:
    """Of one group of layers: what a block of it holds."""

    #: "tokens", "state" or "encoder".
    kind: Name
    num_layers: Count
    #: Tokens.
    block_size: Count
    #: Tokens that are read before a token: a window, or its own chunk; 0: all.
    window: Count
    chunk: Count


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What two nodes have to share before they can exchange blocks (`compat`)."""

    #: Digest of the weights.
    weights: Name
    #: Of the cached K/V, and bits of one number.
    dtype: Name
    element_bits: Count
    #: Digest of the scales that quantized K/V were written with; empty: none.
    scales: Name
    num_heads: Count
    head_size: Count
    groups: Annotated[tuple[GroupPrint, ...], AtMost(MAX_GROUPS)]
    hash_algorithm: Name
    #: Tokens.
    hash_block_size: Count
    #: Digest of the draft model whose K/V are cached as well; empty: none.
    drafter: Name
    #: The order of the bytes of a block, and of those of a state; the latter empty: no states.
    layout: Name
    state_layout: Name
    num_ranks: RankNumber
    #: The oldest and the latest version of the protocol that it speaks.
    oldest_version: Count
    latest_version: Count


class Role(Enum):
    """What a node does for others: it lends K/V that it has computed, reads those of others, or
    both.
    """

    PREFILL = 0
    DECODE = 1
    BOTH = 2

    @property
    def lends(self) -> bool:
        """Whether it grants leases."""
        return self is not Role.DECODE

    @property
    def reads(self) -> bool:
        """Whether it pulls."""
        return self is not Role.PREFILL


@dataclass(frozen=True, slots=True)
class Hello:
    """Who I am, and what my blocks are like; before all else, both ways. It is encoded in its
    sender's latest version, and read by every one: later ones only add fields.
    """

    node: Name
    incarnation: Run
    fingerprint: Fingerprint
    #: The run of the receiver whose hello was heard; None: none was, so answer with yours.
    heard: Run | None = None
    role: Role = Role.BOTH
    #: How often this run has changed its role: what was said later counts.
    changes: Count = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """One field in which two nodes differ, and mustn't, with the values of both."""

    field: Name
    #: Of who refuses, and of who is refused.
    ours: Reason
    theirs: Reason


@dataclass(frozen=True, slots=True)
class Refused:
    """We can't exchange blocks. Nothing else is answered; trying again helps after a restart with
    other settings, of either of us.
    """

    #: The run that is refused.
    run: Run
    differences: Annotated[tuple[Refusal, ...], AtMost(MAX_REFUSALS)]


# -- between nodes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Release:
    """The reader needs a lease no more. Answered by `Released`, also for an unknown lease."""

    lease: Lease
    incarnation: Run


@dataclass(frozen=True, slots=True)
class Released:
    """The owner knows."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Renew:
    """All leases of this owner that the reader still wants (T22); not answered."""

    leases: Annotated[tuple[Lease, ...], AtMost(MAX_LIST)]


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend me the longest prefix of these block hashes that you hold. Answered by `Lent`."""

    number: PullNumber
    reader_run: Run
    hashes: Annotated[tuple[Annotated[BlockHash, AtMost(64)], ...], AtMost(MAX_LIST)]
    #: Tokens a hash.
    hash_block_size: Count


class NoTicket(Enum):
    """Why there is no ticket, and what can be done about it."""

    NOTHING = 0  #: it isn't here, or can't be spared: compute it, or try another holder
    ROLE = 1  #: this node lends nothing, as its hello says: ask one whose role does
    ENDING = 2  #: this node drains: ask another


@dataclass(frozen=True, slots=True)
class Lent:
    """The answer to `Borrow`."""

    number: PullNumber
    #: Who asked: a later run of the reader may have another question of that number.
    reader_run: Run
    ticket: Ticket | None
    #: If there is no ticket.
    why: Annotated[NoTicket, Since(2)] = NoTicket.NOTHING


@dataclass(frozen=True, slots=True)
class Stream:
    """I want the K/V of this transfer as they come (T11). Answered by `StreamState`."""

    transfer: Name


class Progress(Enum):
    """How far the owner is with a transfer."""

    QUEUED = 0  #: known, not admitted yet: ask again
    ADMITTED = 1  #: all its blocks are held; the ticket is there
    GONE = 2  #: unknown, failed or over
    TAKEN = 3  #: another node reads along: the lease is its alone


@dataclass(frozen=True, slots=True)
class StreamState:
    """The answer to `Stream`; also sent by itself once the transfer is admitted."""

    transfer: Name
    progress: Progress
    ticket: Ticket | None
    #: If it is gone.
    why: NoTicket = NoTicket.NOTHING


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A lease is being taken back: nothing new can be opened (T11, T12). Not answered."""

    lease: Lease


# -- between a reader's worker and an owner's ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartId:
    """One part of one round of a pull, named by its reader."""

    pull: PullNumber
    #: The reader's rank and the owner's.
    reader: RankNumber
    owner: RankNumber


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to serve. Answered by `Opened` or `Denied`; a repeat gets the same answer."""

    part: PartId
    lease: Lease
    #: The run of the owner that issued the lease (T5).
    owner: Run
    wanted: TokenSpans
    #: KV heads [first, last) that are wanted of each token.
    heads: Heads
    #: Of the tokens that the reader takes the lease to be of (`content`).
    content: Annotated[bytes, AtMost(32)]


@dataclass(frozen=True, slots=True)
class Opened:
    """It is open; the owner sends the bytes, or the reader reads them from these blocks."""

    part: PartId
    #: Of the owner's tables what is wanted; empty where it sends.
    blocks: Blocks
    #: Tokens that can be read now; more come with `Settled` (streaming).
    settled: Annotated[Count, Since(2)] = MAX_TOKENS
    #: Of the owner's groups, in tokens, for who reads by itself; empty: like the reader's.
    block_sizes: Annotated[tuple[Count, ...], AtMost(MAX_GROUPS), Since(2)] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """An open part can be read further; not answered."""

    part: PartId
    settled: Count


class Why(Enum):
    """Why a part is denied."""

    GONE = 0  #: no such lease, or no more: the bytes, if any came, are worthless
    TAKEN = 1  #: another reader is at it (T19)
    REFUSED = 2  #: it isn't what the lease covers, or more than one reader may have


@dataclass(frozen=True, slots=True)
class Denied:
    """The answer to `Open` or `Confirm`, or said of an open part that can't be finished."""

    part: PartId
    why: Why


@dataclass(frozen=True, slots=True)
class Confirm:
    """All bytes are there: are they good? Answered by `Confirmed` or `Denied` (T4)."""

    part: PartId
    lease: Lease


@dataclass(frozen=True, slots=True)
class Confirmed:
    """They are: nothing that was read was reused since it was opened."""

    part: PartId


@dataclass(frozen=True, slots=True)
class Close:
    """The reader has stopped reading, or never began; not answered."""

    part: PartId


@dataclass(frozen=True, slots=True)
class StillReading:
    """The reader's read moves on (T16); not answered."""

    part: PartId


NodeMessage: TypeAlias = (
    Release | Released | Renew | Borrow | Lent | Stream | StreamState | Withdrawn
)
WorkerMessage: TypeAlias = (
    Open | Opened | Settled | Denied | Confirm | Confirmed | Close | StillReading
)
Greeting: TypeAlias = Hello | Refused
Message: TypeAlias = Greeting | NodeMessage | WorkerMessage

#: Version 2 brought reading along while a prompt is computed.
_KINDS_SINCE: Final[dict[type, int]] = {Stream: 2, StreamState: 2, Withdrawn: 2, Settled: 2}


def since(kind: type) -> int:
    """The version that brought a kind of message; older peers don't know it."""
    return _KINDS_SINCE.get(kind, 1)
