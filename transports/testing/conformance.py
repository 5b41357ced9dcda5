"""All checks, and how to run one.

Knows nothing of: any one transport.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from transports.testing import breaking, cancelling, ending, flow, loops, meeting, messages, regions
from transports.testing.setup import Setup

#: Named by its promise; raises AssertionError, or whatever came up, if it isn't kept.
Check: TypeAlias = Callable[[Setup], Awaitable[None]]

#: Checks that also hold under legal faults of the caller's, which don't cut links.
PLAIN: Final[list[Check]] = [
    *messages.CHECKS,
    *flow.CHECKS,
    *ending.CHECKS,
    *cancelling.CHECKS,
    *meeting.CHECKS,
    *regions.CHECKS,
    *loops.CHECKS,
]
#: Checks that bring faults of their own.
WITH_FAULTS: Final[list[Check]] = [*breaking.CHECKS]
CHECKS: Final[list[Check]] = [*PLAIN, *WITH_FAULTS]


async def run(check: Check, setup: Setup, *, limit_s: float = 30.0) -> None:
    """Put a transport through one check. Raises: AssertionError; TimeoutError if it hangs."""
    async with asyncio.timeout(limit_s):
        await check(setup)
