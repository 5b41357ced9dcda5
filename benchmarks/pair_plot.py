"""Tails of the times between tokens, drawn.

Owns:   nothing.
Knows nothing of: how they were measured.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.pair_figures import Isolation, tail


def plot(found: Sequence[Isolation], path: Path) -> None:
    """How large a share of the gaps is above each length."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, one in enumerate(found):
        for values, style, when in ((one.without, ":", "alone"), (one.beside, "-", "with prompts")):
            lengths, shares = zip(*tail(values), strict=True)
            in_ms = [1e3 * length for length in lengths]
            axes.step(in_ms, shares, style, color=f"C{number}", label=f"{one.setup}: {when}")
    axes.axhline(0.01, color="grey", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time from a running answer's token to its next, ms")
    axes.set_ylabel("share that takes longer")
    axes.legend(fontsize="x-small")
    figure.savefig(path)
