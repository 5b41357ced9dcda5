"""`kvdist doctor`: a line for each thing looked at."""

import sys

import pytest
from typer.testing import CliRunner

from kvdist.cli.main import app


def test_it_names_what_is_there() -> None:
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for word in ("kvdist ", "torch 2", "cpu: ", "memory: yes", "tcp: yes", "memfd: "):
        assert word in result.output


def test_it_says_what_to_do_about_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvdist.worker.devices", None)
    monkeypatch.setitem(sys.modules, "transports.ucx", None)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "install kvdist[serve]" in result.output
    assert "ucx: no: " in result.output
