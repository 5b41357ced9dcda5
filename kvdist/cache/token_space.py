"""The five parts of a request's positions in one allocation (S11).

Owns:   nothing.
Knows nothing of: blocks.
Units:  tokens.
Source: the document's drawing of the token space.

    | computed | hit | external | new | lookahead |
    0          |     local      |     |           |
               |                total main        slots

`computed` is in the request's tables already; `hit` has blocks that may be idle; `external` exists
elsewhere and needs blocks but no hash yet; `new` is computed by this step; `lookahead` holds draft
tokens and is never published.
"""

from typing import NamedTuple

from kvdist.ids import RequestId


class TokenSpace(NamedTuple):
    """Boundaries of one allocation."""

    request_id: RequestId
    #: computed + hit: what this node has.
    local: int
    #: local + external: where computing starts.
    total: int
    #: total + new: what the main model will have computed.
    main: int
    #: main + lookahead, at most the longest sequence: what needs slots.
    slots: int
    #: Tokens of the encoder, for cross attention.
    encoder: int = 0
