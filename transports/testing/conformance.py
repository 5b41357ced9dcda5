"""All checks, and how to run one.

Knows nothing of: any one transport.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from transports.testing import (
    breaking,
    cancelling,
    closing,
    ending,
    flow,
    loops,
    lying,
    meeting,
    messages,
    reading,
    regions,
)
from transports.testing.setup import Setup

#: Named by its promise; raises AssertionError, or whatever came up, if it isn't kept.
Check: TypeAlias = Callable[[Setup], Awaitable[None]]

MESSAGES: Final[list[Check]] = messages.CHECKS
FLOW: Final[list[Check]] = flow.CHECKS
ENDING: Final[list[Check]] = ending.CHECKS
CANCELLING: Final[list[Check]] = cancelling.CHECKS
MEETING: Final[list[Check]] = meeting.CHECKS
READS: Final[list[Check]] = [*regions.CHECKS, *reading.CHECKS, *closing.CHECKS]
LOOPS: Final[list[Check]] = loops.CHECKS
#: These bring faults of their own.
BREAKING: Final[list[Check]] = [*breaking.CHECKS, *lying.CHECKS]

PLAIN: Final[list[Check]] = [*MESSAGES, *FLOW, *ENDING, *CANCELLING, *MEETING, *READS, *LOOPS]
CHECKS: Final[list[Check]] = [*PLAIN, *BREAKING]


async def run(check: Check, setup: Setup, *, limit_s: float = 30.0) -> None:
    """Put a transport through one check. Raises: AssertionError; TimeoutError if it hangs."""
    async with asyncio.timeout(limit_s):
        await check(setup)
