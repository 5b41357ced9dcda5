"""`kvdist up MODEL`: a router and its nodes on this machine, by one command.

Owns:   the flags, and how many processes look as one.
Knows nothing of: how processes are started and ended.
"""

import asyncio
import json
import shlex
from contextlib import ExitStack
from typing import Annotated, Final, Literal

import typer

from kvdist.cli.runners import check_model
from kvdist.cli.screen import Screen
from kvdist.launch.cluster import Cluster, Ledgers
from kvdist.launch.lines import Line
from kvdist.launch.plan import ROUTER, Plan

_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue")
_STYLES: Final = {"warning": "yellow", "error": "red", "critical": "red", "debug": "dim"}
_PROMPT: Final = (
    "A story about a cache that remembered everything that it had ever computed.\n\n"
    "Once upon a time, there was a cache"
)


def up(
    model: Annotated[str, typer.Argument(help="As for kvdist serve.")],
    node_flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- FLAGS]", help="Flags of kvdist serve, for every node."),
    ] = None,
    prefill: Annotated[int, typer.Option(min=0, max=64, help="Nodes that compute prompts.")] = 1,
    decode: Annotated[int, typer.Option(min=1, max=64, help="Nodes that answer.")] = 1,
    transport: Annotated[
        Literal["tcp", "shm", "ucx"], typer.Option(help="What carries K/V between nodes.")
    ] = "tcp",
    host: Annotated[str, typer.Option(help="Address of the router.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the router; 0: any.")] = 8000,
    check: Annotated[
        bool, typer.Option(help="At the end, print each node's ledger; fail if one isn't balanced.")
    ] = False,
) -> None:
    """Bring up a router and nodes, until SIGTERM or Ctrl-C; then answer what is open, and end.

    Exit status 0 after that, 1 if a ledger isn't balanced, 2 if a process ends by itself.
    """
    check_model(model)
    plan = Plan(
        model=model,
        num_prefill=prefill,
        num_decode=decode,
        transport=transport,
        host=host,
        port=port,
        node_flags=tuple(node_flags or ()),
    )
    screen = Screen()
    ledgers = asyncio.run(_run(plan, screen, wants_ledgers=check))
    for name, ledger in ledgers.items():
        screen.line(f"{name}: {json.dumps(ledger)}")
    if not all(ledger.get("balanced") is True for ledger in ledgers.values()):
        raise typer.Exit(1)


async def _run(plan: Plan, screen: Screen, *, wants_ledgers: bool) -> Ledgers:
    names = [ROUTER, *plan.nodes]
    width = max(map(len, names))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}

    def is_ready() -> None:
        bars.close()
        body = json.dumps({"model": cluster.model, "prompt": _PROMPT, "max_tokens": 32})
        screen.line(f"ready: {cluster.url}", "bold green")
        screen.line(
            f"  curl {cluster.url}/v1/completions -H 'Content-Type: application/json' "
            f"-d {shlex.quote(body)}"
        )

    with ExitStack() as bars:
        loading = bars.enter_context(screen.all_loading())

        def say(name: str, line: Line) -> None:
            if line.event == "loading" and screen.is_terminal:
                loading(name, str(line.values.get("what")), float(line.values.get("share", 0)))
            else:
                style = _STYLES.get(line.level, "")
                screen.tagged(f"{name:{width}} | ", line.text, style, colours[name])

        cluster = Cluster(plan, say)
        return await cluster.run(is_ready, wants_ledgers=wants_ledgers)
