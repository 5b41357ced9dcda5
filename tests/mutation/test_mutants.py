"""Plant bugs in a copy of kvdist; for each some test must fail (`make mutants` tries them all)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import MUTANTS as CACHE_MUTANTS, Mutant
from tests.mutation.sched_mutants import SCHED_MUTANTS

MUTANTS = CACHE_MUTANTS + SCHED_MUTANTS

ROOT = Path(__file__).resolve().parent.parent.parent
REPLAY = """
import sys
from pathlib import Path
from kvdist import cache
from kvdist.replay.trace import replay_file
assert Path(cache.__file__).is_relative_to(Path.cwd()), cache.__file__
for path in sorted(Path("tests/data/oracle").glob(sys.argv[1] + "*.gz")):
    if difference := replay_file(path).difference:
        sys.exit(f"{path.name}: {difference}")
"""


def _copy(folder: Path) -> None:
    """kvdist and its tests, with the recorded traces linked to."""
    ignored = shutil.ignore_patterns("__pycache__", "data", "mutation")
    shutil.copytree(ROOT / "kvdist", folder / "kvdist", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copytree(ROOT / "tests/mutation", folder / "tests/mutation", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    os.symlink(ROOT / "tests/data", folder / "tests/data")


def _run(folder: Path, catcher: str) -> subprocess.CompletedProcess[str]:
    """Run a catcher there; it exits with 0 if it noticed nothing, with 1 if it did."""
    if catcher.startswith("oracle "):
        command = [sys.executable, "-c", REPLAY, catcher.removeprefix("oracle ")]
    else:
        plugins = ["-p", "tests.mutation.no_shrinking", "-p", "no:cacheprovider"]
        profile = "--hypothesis-profile=mutants"
        command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, profile, catcher]
    # One hash seed: the order of sets is the same in each run, and so is what a catcher tries.
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    environment = {**os.environ, "PYTHONPATH": str(folder), **fixed}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def _cases() -> list[object]:
    return [
        pytest.param(mutant, id=mutant.label, marks=() if mutant.always else pytest.mark.slow)
        for mutant in MUTANTS
    ]


@pytest.mark.parametrize("mutant", _cases())
def test_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    _copy(tmp_path)
    source = tmp_path / mutant.file
    text = source.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: aim this mutant anew"
    assert mutant.old != mutant.new
    source.write_text(text.replace(mutant.old, mutant.new))
    result = _run(tmp_path, mutant.catcher)
    assert result.returncode == 1, f"not caught\n{result.stdout}\n{result.stderr}"
    for mistake in ("SyntaxError", "ImportError", "NameError"):
        assert mistake not in result.stdout + result.stderr, "a slip of the mutant's own"


def test_all_mutants_can_still_be_planted() -> None:
    gone = [
        mutant.label
        for mutant in MUTANTS
        if (ROOT / mutant.file).read_text().count(mutant.old) != 1
    ]
    assert gone == [], "the source has changed: aim these mutants anew"


@pytest.mark.slow
@pytest.mark.parametrize("catcher", sorted({mutant.catcher for mutant in MUTANTS}))
def test_without_a_mutant_nothing_is_noticed(catcher: str, tmp_path: Path) -> None:
    _copy(tmp_path)
    result = _run(tmp_path, catcher)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
