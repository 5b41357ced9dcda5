"""The conformance suite: what `api` promises, as checks that any transport can be put through.

Knows nothing of: pytest, any one transport.

    setup = Setup(make=MyTransport, address=some_fresh_address)
    for check in CHECKS:
        asyncio.run(run(check, setup))

`python -m transports.testing ADDRESS` sends gigabytes through a link and watches memory.
"""

from transports.testing.conformance import CHECKS, Check, run
from transports.testing.setup import Pair, Setup

__all__ = ["CHECKS", "Check", "Pair", "Setup", "run"]
