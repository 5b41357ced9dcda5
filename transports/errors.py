"""The tree of errors: who is to blame, and whether trying again can help.

Knows nothing of: any one transport; foreign errors are mapped to these where they come up.

    TransportError
      LocalMisuse       caller    a call that breaks the contract; nothing was sent
      Unsupported       caller    this transport can't do that, or isn't there on this machine
      BadRecording      caller    a file that is no recording of a link
      ReadCancelled     caller    somebody on this side cancelled a one-sided read; the link goes on
      BodyRefused       peer      the receiver would not say where a body should land
      RegionClosed      peer      the owner has closed the region to be read; the link goes on
      Refused           peer      the peer, or we, ended the handshake: token, version, allow-list
      Unreachable       network   nobody answers at this address; later somebody may
      PeerClosed        peer      the link ended cleanly
      PeerLost          network   the link ended in the middle of something
      RemoteProtocol    peer      the peer broke the protocol; the link is closed
"""

from typing import ClassVar, Literal

Blame = Literal["caller", "peer", "network"]


class TransportError(Exception):
    """Root of all errors of this package."""

    blame: ClassVar[Blame] = "network"
    #: True when the same thing, tried again (on a new link where this one is closed), can succeed.
    retryable: ClassVar[bool] = False


class LocalMisuse(TransportError, ValueError):
    """A call that breaks the contract: wrong sizes, a second receiver, a link that is closed."""

    blame = "caller"


class Unsupported(TransportError):
    """The transport has no such capability, or what it needs is not there on this machine."""

    blame = "caller"


class BadRecording(TransportError, ValueError):
    """A file is no recording, is damaged, or tells what no link can have done."""

    blame = "caller"


class ReadCancelled(TransportError):
    """A one-sided read was cancelled, by whomever; some of its bytes may have landed."""

    blame = "caller"
    retryable = True


class BodyRefused(TransportError):
    """The receiver refused a body before any byte of it was written; the link goes on."""

    blame = "peer"


class RegionClosed(TransportError):
    """The owner has closed the region: what a read has written, if anything, is not to be used. The
    link goes on.
    """

    blame = "peer"


class Refused(TransportError):
    """The handshake failed: version, token, allow-list or limits don't fit."""

    blame = "peer"


class Unreachable(TransportError, ConnectionError):
    """No link could be made: nobody listens, or nobody answers in time."""

    retryable = True


class PeerClosed(TransportError, ConnectionError):
    """The peer closed the link; everything before that has arrived."""

    blame = "peer"
    retryable = True


class PeerLost(TransportError, ConnectionError):
    """The link broke, the peer fell silent, or this side aborted; what was under way is unknown."""

    retryable = True


class RemoteProtocol(TransportError):
    """The peer sent what the protocol forbids. The link is closed at once."""

    blame = "peer"
