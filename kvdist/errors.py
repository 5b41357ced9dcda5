"""The tree of errors: who is to blame, and whether trying again can help.

Owns:   nothing.
Knows nothing of: everything else.

    KvdistError
      ConfigError             caller   the settings contradict each other or a limit
      LocalMisuse             caller   a call that breaks the callee's contract
        InvalidRequest        caller   tokens, keys or sizes of a request are out of range
          RequestTooLarge     caller   a request that could never be finished here
        UnknownModel          caller   a model that this node doesn't have
        Superseded            caller   a run of a node that a later one has replaced: it has to end
        IllegalAllocation     caller   an allocation that names nothing, or takes hits twice
        StaleHit              caller   the cache changed since the lookup: look up again
        UnknownRequest        caller   no such live request
        ForeignBlock          caller   a block, or a block id, that is not this pool's
        DoubleFree            caller   more references given back than were taken
        UnknownStep           caller   a step that isn't open, or opens out of order
      Unavailable             us       no room for it now, or the node is ending: try elsewhere
      NodeFailed              peer     a node that was asked doesn't answer: ask another
        NodeBusy              peer     it has no room now; it has not begun
        WrongRole             caller   work that a node of another role does: ask such a one
      GenerationFailed        us       a request that was begun could not be finished
      StepFailed              us       a step did not do what it was to do: it is computed anew
      WorkerLost              us       the worker is gone, and its node ends too
      ProcessEnded            us       a process of a cluster ended by itself: all end
      FormatError             input    a file that is not what its format says
      RemoteProtocol          peer     a peer said what the protocol doesn't allow: its link ends
      Incompatible            caller   two nodes that can't exchange blocks; names what differs
      InvariantViolation      us       the auditor found a broken invariant
        InvalidTransition     us       a state machine met an event that can't be
"""

from typing import ClassVar, Literal

Blame = Literal["caller", "input", "peer", "us"]


class KvdistError(Exception):
    """Root of all errors that kvdist raises on purpose."""

    blame: ClassVar[Blame] = "us"
    #: True when the same call, made again after what the message says, can succeed.
    retryable: ClassVar[bool] = False


class ConfigError(KvdistError, ValueError):
    """Settings that contradict each other or a limit."""

    blame = "caller"


class LocalMisuse(KvdistError, ValueError):
    """A call that breaks the callee's contract; nothing has changed."""

    blame = "caller"


class InvalidRequest(LocalMisuse):
    """Tokens, extra keys or sizes of a request are out of range."""


class RequestTooLarge(InvalidRequest):
    """A request that even an empty node could not finish."""


class UnknownModel(LocalMisuse):
    """A model that this node doesn't have."""


class Superseded(LocalMisuse):
    """A run of a node that a later one has replaced; it has to end (T21)."""


class IllegalAllocation(LocalMisuse):
    """An allocation with nothing to do, negative sizes, or hits for a request that owns blocks."""


class StaleHit(LocalMisuse):
    """The cache changed between a lookup and the allocation that uses its result."""

    retryable = True


class UnknownRequest(LocalMisuse):
    """No live request of this name owns blocks."""


class ForeignBlock(LocalMisuse):
    """A block, or a block id, that does not belong to this pool."""


class DoubleFree(LocalMisuse):
    """More references were given back than were taken."""


class UnknownStep(LocalMisuse):
    """A step that isn't open, or that would open out of order."""


class Unavailable(KvdistError):
    """No room for a request now, or the node is ending; nothing has changed."""

    retryable = True


class NodeFailed(KvdistError):
    """A node that was asked can't be reached, is busy, or answers what makes no sense."""

    blame = "peer"
    retryable = True


class NodeBusy(NodeFailed):
    """A node has no room for a request now; it has not begun."""


class WrongRole(Unavailable):
    """Work that this node's role lacks; nothing has changed. Retry at a node whose role has it."""

    blame = "caller"


class GenerationFailed(KvdistError):
    """A request that was begun could not be finished."""

    retryable = True


class StepFailed(KvdistError):
    """A step is over and did not do what it was to do."""

    retryable = True


class WorkerLost(KvdistError):
    """The worker is gone; its node ends too (T5)."""


class ProcessEnded(KvdistError):
    """A process of a cluster ended by itself; the others end too."""


class FormatError(KvdistError, ValueError):
    """A file that is not what its format says."""

    blame = "input"


class RemoteProtocol(KvdistError):
    """A peer said what the protocol doesn't allow; it costs that peer its link."""

    blame = "peer"


class Incompatible(KvdistError):
    """Two nodes can't exchange blocks; the message names every field that differs."""

    blame = "caller"


class InvariantViolation(KvdistError, AssertionError):
    """The auditor re-derived the state and found it broken; the message lists every finding."""


class InvalidTransition(InvariantViolation):
    """A state machine met an event that can't be in its state; carries the machine's story."""
