"""`python -m tests.pairs`: every family of models over every transport, by pairs of nodes.

Each prompt is answered by a pair, cold and warm, some with several answers and a next turn; all of
it is compared, token for token, with a single node and with transformers' `generate`. Exit status 1
if one differs where the choice was clear, or too many where it was close.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

import structlog

from kvdist import check
from tests.links.pairs import TRANSPORTS
from tests.pairs.models import MODELS, Subject, subject
from tests.pairs.play import Said, alone, play
from tests.pairs.work import Ask, asks


def main() -> int:
    """Play what the flags say."""
    flags = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__)
    flags.add_argument("--model", action="append", choices=MODELS, help="all, if not given")
    flags.add_argument("--transport", action="append", choices=TRANSPORTS, help="all")
    flags.add_argument("--prompts", type=int, default=200, help="for each of both")
    flags.add_argument("--seed", type=int, default=0)
    told = flags.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    check.level = 0  # words are looked at here; the nodes audit themselves once, at the end
    with tempfile.TemporaryDirectory() as folders:
        failed = [model for model in told.model or MODELS if not _model(model, told, Path(folders))]
    if failed:
        sys.stdout.write(f"failed: {', '.join(failed)}\n")
    return bool(failed)


def _model(name: str, told: argparse.Namespace, folders: Path) -> bool:
    of = subject(name, folders)
    work = list(asks(told.seed, told.prompts, of.stream))
    try:
        by_one = asyncio.run(alone(of, work))
    except (AssertionError, ExceptionGroup) as wrong:
        return _line(f"{name:22} alone  WRONG: {_first(wrong)}", good=False)
    transports = told.transport or TRANSPORTS
    good = [_pair(name, of, transport, work, by_one) for transport in transports]
    return all(good)


def _pair(name: str, of: Subject, transport: str, work: list[Ask], by_one: Said) -> bool:
    begun, head = time.monotonic(), f"{name:22} {transport:6}"
    try:
        found = asyncio.run(play(of, transport, work, by_one))
    except (AssertionError, ExceptionGroup) as wrong:
        return _line(f"{head} WRONG: {_first(wrong)}", good=False)
    return _line(
        f"{head} {found.num_compared} answers, {found.comparison.num_close} parted where it was "
        f"close; tokens: {found.num_pulled} pulled, {found.num_pulled_back} pulled back, "
        f"{found.num_cached} there already; {time.monotonic() - begun:.0f} s",
        good=True,
    )


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _line(text: str, *, good: bool) -> bool:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    return good


if __name__ == "__main__":
    sys.exit(main())
