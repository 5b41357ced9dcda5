"""`python -m transports.testing ADDRESS [GIGABYTES]`: a soak; fails if memory grows.

An address is one to listen at, such as memory://soak, tcp://127.0.0.1:0, shm:///tmp/soak.
"""

import asyncio
import sys

from transports.testing.soak import soak

#: Memory may grow by so much from a tenth of the way to the end.
_SLACK_BYTES = 32 << 20


def main() -> int:
    """Run it, and say how it went."""
    if not 2 <= len(sys.argv) <= 3:
        sys.stderr.write(__doc__ or "")
        return 2
    total_bytes = round(float((sys.argv[2:] or ["10"])[0]) * 1e9)

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    soaked = asyncio.run(soak(sys.argv[1], total_bytes, tell=say))
    say(str(soaked))
    return int(soaked.late_bytes > soaked.early_bytes + _SLACK_BYTES)


if __name__ == "__main__":
    sys.exit(main())
