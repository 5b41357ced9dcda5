"""`python -m transports.testing`: what it takes, and what it says to what it can't take."""

import pytest
import typer
from typer.testing import CliRunner

from transports.testing.__main__ import main

app = typer.Typer()
app.command()(main)


def test_it_soaks() -> None:
    done = CliRunner().invoke(app, ["memory://soak", "0.01"])
    assert done.exit_code == 0
    assert "GB in 18 messages" in done.stdout


def test_it_explains_itself() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert "memory" in done.stdout


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense", "no address: 'nonsense'"),
        ("carrier-pigeon://x", "no transport 'carrier-pigeon'"),
        ("shm:///nowhere/at/all", "No such file or directory"),
        ("tcp://127.0.0.1", "lacks a host or a port"),
    ],
)
def test_a_bad_address_gets_one_line(address: str, said: str) -> None:
    done = CliRunner().invoke(app, [address, "0.01"])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
