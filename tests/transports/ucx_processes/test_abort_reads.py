"""UCX aborts a process whose worker goes while gets are queued; ours must not let it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ucxx", reason="the extra `ucx` is not installed")

ROOT = Path(__file__).resolve().parents[3]


def test_aborted_in_the_middle_of_scattered_reads() -> None:
    script = Path(__file__).with_name("abort_reads.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
