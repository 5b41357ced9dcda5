"""`python -m tests.chaos`: real processes, killed and stopped while clients are served.

Exit status 1 if a promise is broken. What happens comes of the seed, though not to the millisecond:
the machine has its say. Logs are kept in --folder.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.chaos.play import play
from tests.chaos.scene import SCENES, TRANSPORTS, Scene


def main() -> int:
    """Play what the flags say."""
    flags = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    flags.add_argument("--scene", action="append", choices=SCENES, help="all, if not given")
    flags.add_argument("--transport", action="append", choices=TRANSPORTS, help="all")
    flags.add_argument("--seed", type=int, help="by chance, if not given")
    flags.add_argument("--seconds", type=float, default=30.0, help="of each scene")
    flags.add_argument("--folder", type=Path, help="a new one in TMPDIR")
    told = flags.parse_args()
    seed = random.randrange(1 << 16) if told.seed is None else told.seed
    folder = told.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    sys.stdout.write(f"seed {seed}, logs in {folder}\n")
    num_failed = 0
    for number, scene in enumerate(_scenes(told, seed)):
        place = folder / f"{number}-{scene.name.replace(' ', '-')}-{scene.transport}"
        place.mkdir(parents=True)
        report = asyncio.run(play(scene, place))
        sys.stdout.write(report.text + "\n")
        sys.stdout.flush()
        num_failed += bool(report.findings)
    return bool(num_failed)


def _scenes(told: argparse.Namespace, seed: int) -> Iterator[Scene]:
    for name in told.scene or SCENES:
        for transport in told.transport or TRANSPORTS:
            scene = SCENES[name]
            yield replace(scene, transport=transport, seed=seed, seconds=told.seconds)


if __name__ == "__main__":
    sys.exit(main())
