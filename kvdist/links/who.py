"""Who is at the other end of a link, as its handshake proved.

Owns:   nothing.
Knows nothing of: what is said on the link.
"""

from kvdist.errors import RemoteProtocol
from kvdist.ids import Incarnation
from transports.api import Link


def run_of(link: Link) -> Incarnation:
    """Which run of the peer it is. Raises: RemoteProtocol."""
    text = link.peer.incarnation
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RemoteProtocol(f"{link.peer.node_id} calls its run {text!r}, which is no number")
    return Incarnation(int(text))
