"""`kvdist simulate`: clusters in one thread, by seed, with faults; every token compared.

Owns:   how a run is shown, the clock.
Knows nothing of: how clusters work.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from kvdist import check
from kvdist.cli.screen import Screen
from kvdist.sim.coverage import counted_rows
from kvdist.sim.faults import KINDS, faults_of
from kvdist.sim.run import Report, play, walk
from kvdist.sim.saved import Saved, load, save as save_script
from kvdist.sim.script import Walk
from kvdist.sim.shrink import last_line, shrink
from kvdist.sim.story import jobs_in, story

_ALL = ", ".join(KINDS)


def simulate(
    seed: Annotated[int, typer.Option(min=0, help="Of the first walk.")] = 0,
    walks: Annotated[int, typer.Option(min=1, help="So many walks, from that seed on.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Events of one walk.")] = 20_000,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Nodes of the cluster.")] = 3,
    faults: Annotated[
        list[str] | None, typer.Option(help=f"Several times for several kinds: {_ALL}, all.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Where the shortest script that fails goes.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(exists=True, help="Play what was saved so, in place of walks.")
    ] = None,
) -> None:
    """Walk through whatever clusters may meet, and audit every node after every event.

    Exit status 1 if a promise was broken: the seed is then shortened to a script, and the story of
    the request concerned is told. `kvdist --check 2` audits harder.
    """
    chosen = faults_of(faults or ["all"])
    if not check.level:
        check.level = 1
    if script is not None:
        _play(Screen(), script)
        return
    screen, started = Screen(), time.perf_counter()
    counts: Counter[str] = Counter()
    num_events = virtual = 0.0
    with counted_rows() as rows, screen.progress(range(seed, seed + walks), "walks") as seeds:
        failed = None
        for number in seeds:
            report = walk(Walk(number, nodes, chosen), number, chosen, steps)
            counts += report.counts
            num_events += report.num_events
            virtual += report.seconds
            if report.failure:
                failed = report
                break
    seconds = time.perf_counter() - started
    screen.line(
        f"{walks} walks from seed {seed}, {nodes} nodes: {num_events:,.0f} events, "
        f"{virtual:,.0f} virtual seconds, {num_events / seconds * 60:,.0f} events a minute"
    )
    for what, count in sorted(counts.items()):
        screen.line(f"{count:10,}  {what}")
    missed = [row for row, count in rows.items() if not count]
    screen.line(f"{len(rows) - len(missed)} of {len(rows)} rows of the tables were taken")
    if failed is not None:
        _shorten(screen, failed, save)
        raise typer.Exit(1)
    screen.line("all as promised")


def _play(screen: Screen, path: Path) -> None:
    saved = load(path)
    screen.line(f"once it showed: {saved.shows}")
    report = play(saved.script)
    if report.failure:
        _tell(screen, report)
        raise typer.Exit(1)
    screen.line("all as promised")


def _shorten(screen: Screen, report: Report, save: Path | None) -> None:
    screen.line(f"\nseed {report.script.seed}: {report.failure}", "red")
    shortest = shrink(report)
    if save is not None:
        save_script(Saved(shortest.script, last_line(shortest.failure)), save)
    screen.line(f"\nthe shortest script that fails so, {len(shortest.script.actions)} actions:")
    _tell(screen, shortest)


def _tell(screen: Screen, report: Report) -> None:
    screen.line(f"with {report.script.faults}")
    for action in report.script.actions:
        screen.line(f"  {action}")
    screen.line(f"\n{report.failure}", "red")
    if report.cluster is None:
        return
    log = report.cluster.world.log
    for job in jobs_in(report.failure) or jobs_in(str(report.script.actions))[:1]:
        screen.line(f"\nthe story of {job}:")
        for line in story(log, job):
            screen.line(f"  {line}")
