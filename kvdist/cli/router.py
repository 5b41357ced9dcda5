"""`kvdist router`: one OpenAI-compatible API in front of prefill and decode nodes.

Owns:   the flags.
Knows nothing of: how requests are answered.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvdist.errors import ConfigError
from kvdist.node import logs
from kvdist.router.server import serve
from kvdist.router.settings import RouterSettings, StaticNode


def router(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    node: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=prefill|decode|both,http://HOST:PORT of a node that doesn't register; "
            "may be repeated."
        ),
    ] = None,
    registry_token: Annotated[
        str | None,
        typer.Option(
            envvar="KVDIST_REGISTRY_TOKEN",
            help="What nodes have to show to register. Without it only this machine's nodes may.",
        ),
    ] = None,
    registry_token_file: Annotated[
        Path | None, typer.Option(help="A file with that token.", exists=True, dir_okay=False)
    ] = None,
    overlap: Annotated[
        bool,
        typer.Option(help="Ask prefill and decode at the same time, or one after the other."),
    ] = True,
    without_prefill: Annotated[
        Literal["compute", "fail"],
        typer.Option(
            help="If no prefill node can be had: the decode node computes the prompt, or 503."
        ),
    ] = "compute",
    min_prefill_chars: Annotated[
        int,
        typer.Option(min=0, help="Shorter prompts go to a decode node alone; a token counts as 4."),
    ] = 64,
    max_tries: Annotated[
        int, typer.Option(min=1, help="Nodes of each role that are tried for one request.")
    ] = 3,
    answer_timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="Seconds until an answer begins, all tries together, and until each event of a "
            "stream; then 503, or an error event.",
        ),
    ] = 600.0,
    allow_kv_transfer_params: Annotated[
        bool, typer.Option(help="Pass on the kv_transfer_params that clients send.")
    ] = False,
    max_body_bytes: Annotated[
        int, typer.Option(min=1, help="Largest body of a request; larger ones get 413.")
    ] = 32 << 20,
    api_key: Annotated[
        str | None, typer.Option(envvar="KVDIST_API_KEY", help="What clients have to show.")
    ] = None,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to answer what is open, after SIGTERM.")
    ] = 30.0,
    log_format: Annotated[
        Literal["auto", "console", "json"], typer.Option(help="auto: console on a terminal.")
    ] = "auto",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="The least to be logged.")
    ] = "info",
) -> None:
    """Serve the models of many nodes over HTTP, as OpenAI does, until SIGTERM.

    Nodes register themselves (kvdist serve --registry), or are named with --node. Exit status 0
    when all that was open is answered, 2 if it can't begin.
    """
    logs.configure(log_format, log_level)
    settings = RouterSettings(
        host=host,
        port=port,
        nodes=tuple(map(StaticNode.read, node or ())),
        registry_token=_token(registry_token, registry_token_file),
        api_key=api_key,
        overlap=overlap,
        without_prefill=without_prefill,
        min_prefill_chars=min_prefill_chars,
        max_tries=max_tries,
        answer_s=answer_timeout,
        allow_kv_transfer_params=allow_kv_transfer_params,
        max_body_bytes=max_body_bytes,
        drain_s=shutdown_timeout,
    )
    asyncio.run(serve(settings))


def _token(given: str | None, file: Path | None) -> str | None:
    if file is None:
        return given
    if not (found := file.read_text().strip()):
        raise ConfigError(f"{file} is empty")
    return found
