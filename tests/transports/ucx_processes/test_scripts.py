"""What could end this process, or needs one that stands still, runs in processes of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ucxx") is None, reason="ucxx isn't installed (the extra is `ucx`)"
)

ROOT = Path(__file__).resolve().parents[3]


def _run(script: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-2000:]


@pytest.mark.parametrize("environment", [{}, {"UCX_TLS": "tcp"}, {"UCX_TLS": "tcp,cma"}], ids=str)
def test_who_reads_and_goes_harms_nobody(environment: dict[str, str]) -> None:
    """UCX aborts a process whose worker goes while gets are queued; ours must not let it."""
    _run("strike_readers.py", environment)


@pytest.mark.parametrize(
    "environment",
    [{}, {"UCX_RNDV_THRESH": "0"}, {"UCX_RNDV_THRESH": "inf"}, {"UCX_TLS": "tcp"}],
    ids=str,
)
def test_no_body_changes_under_way(environment: dict[str, str]) -> None:
    """A receiver that fetches late must not take for a body what has taken its place."""
    _run("change_bodies.py", environment)
