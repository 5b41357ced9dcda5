"""`kvdist router`: what each flag means. How it runs as a process: tests/router/test_server.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from kvdist.cli import router as command
from kvdist.cli.main import app
from kvdist.router.settings import RouterSettings, StaticNode


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("KVDIST_REGISTRY_TOKEN", raising=False)
    yield
    structlog.reset_defaults()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[RouterSettings]:
    """What routers were told."""
    found: list[RouterSettings] = []

    async def serve(settings: RouterSettings) -> None:
        found.append(settings)

    monkeypatch.setattr(command, "serve", serve)
    return found


def test_nothing_said(told: list[RouterSettings]) -> None:
    assert CliRunner().invoke(app, ["router"], catch_exceptions=False).exit_code == 0
    assert told == [RouterSettings()]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--host 0.0.0.0 --port 9", {"host": "0.0.0.0", "port": 9}),
        (
            "--node p=prefill,http://h:1 --node d=decode,https://h:2",
            {
                "nodes": (
                    StaticNode("p", "prefill", "http://h:1"),
                    StaticNode("d", "decode", "https://h:2"),
                )
            },
        ),
        ("--registry-token x", {"registry_token": "x"}),
        ("--no-overlap", {"overlap": False}),
        ("--without-prefill fail", {"without_prefill": "fail"}),
        ("--min-prefill-chars 7", {"min_prefill_chars": 7}),
        ("--max-tries 9", {"max_tries": 9}),
        ("--answer-timeout 2.5", {"answer_s": 2.5}),
        ("--allow-kv-transfer-params", {"allow_kv_transfer_params": True}),
        ("--max-body-bytes 5", {"max_body_bytes": 5}),
        ("--api-key k", {"api_key": "k"}),
        ("--shutdown-timeout 1.5", {"drain_s": 1.5}),
    ],
)
def test_a_flag(told: list[RouterSettings], flags: str, expected: dict[str, Any]) -> None:
    assert CliRunner().invoke(app, ["router", *flags.split()]).exit_code == 0
    assert told == [RouterSettings(**expected)]


def test_a_token_in_a_file(told: list[RouterSettings], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    CliRunner().invoke(app, ["router", "--registry-token-file", str(file)])
    assert told == [RouterSettings(registry_token="secret")]
    file.write_text("\n")
    result = CliRunner().invoke(app, ["router", "--registry-token-file", str(file)])
    assert result.exit_code == 2 and "is empty" in result.stderr


def test_a_node_that_is_none(told: list[RouterSettings]) -> None:
    result = CliRunner().invoke(app, ["router", "--node", "p0"])
    assert result.exit_code == 2 and "NAME=" in result.stderr and not told
