"""Pulls arrive and are written down; no time is tested."""

import json
from pathlib import Path

import pytest

from benchmarks.pair import main


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_table_and_json(transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.json"
    main(only=transport, repeats=1, small=True, json_file=file)
    (transfer,) = json.loads(file.read_text())["transfers"]
    assert (transfer["transport"], transfer["bytes"]) == (transport, 1 << 20)
    assert len(transfer["pulls_s"]) == len(transfer["raws_s"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == [transport, "1"]
