"""Every trace recorded from vLLM, replayed; the audit runs after every operation."""

from pathlib import Path

import pytest

from kvdist import check
from kvdist.replay.trace import replay_file

FOLDER = Path(__file__).parent.parent / "data" / "oracle"
TRACES = sorted(FOLDER.glob("*.jsonl.gz"))


def test_all_traces_are_there() -> None:
    assert len(TRACES) == 73


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(".jsonl.gz"))
def test_we_do_what_vllm_did(path: Path) -> None:
    assert check.level == 2
    outcome = replay_file(path)
    assert outcome.difference is None
    assert outcome.num_operations > 0
