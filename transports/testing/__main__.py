"""`python -m transports.testing ADDRESS [GIGABYTES]`: a soak; fails if memory grows."""

import asyncio
from typing import Annotated, Final

import typer

from transports.errors import LocalMisuse, Unreachable, Unsupported
from transports.testing.soak import soak

#: Memory may grow by so much from a tenth of the way to the end.
_SLACK_BYTES: Final = 32 << 20


def main(
    address: Annotated[
        str,
        typer.Argument(
            help="to listen at: memory://soak, tcp://127.0.0.1:0, shm:///tmp/soak, "
            "ucx://127.0.0.1:0"
        ),
    ],
    gigabytes: Annotated[float, typer.Argument(min=0.001, max=1e6, help="both ways together")] = 10,
) -> None:
    """Send messages of many sizes to another transport and back, in one process, check what
    arrives, and fail if memory grows.
    """
    try:
        soaked = asyncio.run(soak(address, round(gigabytes * 1e9), tell=typer.echo))
    except (LocalMisuse, Unreachable, Unsupported) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    typer.echo(str(soaked))
    if soaked.late_bytes > soaked.early_bytes + _SLACK_BYTES:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
