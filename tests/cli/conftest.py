"""The environment says nothing, level and logs stay as they were; `kvdist serve` in a test."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeAlias

import pytest
import structlog
from typer.testing import CliRunner, Result

from kvdist import check
from kvdist.cli import serve as command
from kvdist.cli.main import app
from kvdist.node.build import NodeSettings
from kvdist.node.engine import Engine
from kvdist.node.tokenizer import Tokenizer
from tests.node.running import Running, running

Talk: TypeAlias = Callable[[Running], Awaitable[None]]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVDIST_CHECK", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(check, "level", check.level)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command with a conversation in place of clients that come over the network."""

    def run(talk: Talk, *flags: str) -> Result:
        async def serve_node(
            settings: NodeSettings, engine: Engine, tokenizer: Tokenizer, *_: object
        ) -> None:
            told = {name: getattr(settings, name) for name in settings.__slots__}
            async with running(engine=engine, tokenizer=tokenizer, **told) as node:
                await talk(node)

        monkeypatch.setattr(command, "serve_node", serve_node)
        flags = ("--distributed-executor-backend", "uni", *flags)
        result = CliRunner().invoke(app, ["serve", "stub", *flags], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    return run
