"""Pulls arrive and are written down; no time is tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.blocks import ROOT
from benchmarks.pair import main


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_table_and_json(transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.json"
    main(parts="transfer", only=transport, rounds=1, small=True, json_file=file)
    (transfer,) = json.loads(file.read_text())["transfers"]
    assert (transfer["transport"], transfer["bytes"]) == (transport, 1 << 20)
    assert len(transfer["pulls_s"]) == len(transfer["raws_s"]) == 1
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert [transport, "1"] in rows


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nodes_without_a_model_are_measured(tmp_path: Path) -> None:
    file, picture = tmp_path / "pair.json", tmp_path / "itl.png"
    flags = (
        *("--parts=serving,isolation", "--only=shm", "--model=stub", "--rates=20", "--seconds=2"),
        *("--prompt-tokens=64", "--answer-tokens=4", "--long-prompt=256", "--prompt-rate=4"),
        *("--chunks=64", f"--json={file}", f"--plot={picture}"),
    )
    # By itself: whoever draws leaves files of fonts open.
    subprocess.run([sys.executable, "-m", "benchmarks.pair", *flags], cwd=ROOT, check=True)
    told = json.loads(file.read_text())
    assert [one["setup"] for one in told["serving"]] == ["pair over shm", "two single nodes"]
    for served in told["serving"]:
        assert all(len(heard["times"]) == heard["num_tokens"] == 4 for heard in served["heard"])
    assert len(told["isolation"]) == 3
    for played in told["isolation"]:
        assert played["without"]
        assert played["beside"]
        assert played["firsts"]
    assert picture.stat().st_size
