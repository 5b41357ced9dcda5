"""The command as a whole: version, check level, exit status."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kvdist
from kvdist import check
from kvdist.cli import replay_trace as command
from kvdist.cli.main import app

TRACE = Path(__file__).parent.parent / "data" / "oracle" / "a_walkthrough-bs4.jsonl.gz"


def _raising(error: type[BaseException]) -> Callable[[Path], object]:
    def replay_file(path: Path) -> object:
        raise error("on purpose")

    return replay_file


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"kvdist {kvdist.__version__}\n")


@pytest.mark.parametrize("command", [[], ["replay-trace"], ["replay-workload"]])
def test_help(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage: kvdist" in result.stdout or "Usage: root" in result.stdout


def test_help_names_the_environment_variable() -> None:
    assert "KVDIST_CHECK" in CliRunner().invoke(app, ["--help"]).stdout


@pytest.mark.parametrize("level", [0, 1, 2])
def test_check_level_from_the_environment(level: int) -> None:
    result = CliRunner().invoke(app, ["replay-trace", str(TRACE)], env={"KVDIST_CHECK": str(level)})
    assert (result.exit_code, check.level) == (0, level)


def test_check_level_as_an_option() -> None:
    result = CliRunner().invoke(app, ["--check", "1", "replay-trace", str(TRACE)])
    assert (result.exit_code, check.level) == (0, 1)


@pytest.mark.parametrize("level", ["3", "-1", "much"])
def test_no_such_check_level(level: str) -> None:
    result = CliRunner().invoke(app, ["replay-trace", str(TRACE)], env={"KVDIST_CHECK": level})
    assert result.exit_code == 2
    assert "KVDIST_CHECK" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["replay-trace"]])
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "replay_file", _raising(KeyboardInterrupt))
    result = CliRunner().invoke(app, ["replay-trace", str(TRACE)])
    assert result.exit_code == 130


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_no_room_for_what_we_print() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "kvdist", "replay-trace", str(TRACE)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
            check=False,
        )
    assert (result.returncode, result.stderr) == (2, "kvdist: No space left on device\n")


def test_a_name_that_can_not_be_printed(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.jsonl"
    result = CliRunner(charset="ascii").invoke(app, ["replay-trace", os.fsdecode(name)])
    assert result.exit_code == 2
    assert "udcff" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "replay_file", _raising(ZeroDivisionError))
    result = CliRunner().invoke(app, ["replay-trace", str(TRACE)])
    assert isinstance(result.exception, ZeroDivisionError)


def test_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-m", "kvdist", "replay-trace", str(TRACE)],
        env=os.environ | {"KVDIST_CHECK": "2"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{TRACE}       41  ok",
        "1 file, 41 operations, 0 differences",
    ]
