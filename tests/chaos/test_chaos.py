"""A short play over each transport; `make chaos` has all scenes, and longer ones."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.play import play
from tests.chaos.scene import KILLS, SCENES, Scene

_SHORT = (
    replace(SCENES["pair"], transport="shm", seed=1, deeds=KILLS, pause_s=(0.5, 1.5)),
    replace(SCENES["small pool"], transport="tcp", seed=2),
    replace(SCENES["leases"], transport="ucx", seed=3, lease_s=1.5),
    replace(SCENES["marks"], transport="shm", seed=4, marks=("landed", "confirm-heard")),
)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("scene", _SHORT, ids=lambda scene: scene.name)
def test_promises_are_kept(scene: Scene, tmp_path: Path) -> None:
    report = asyncio.run(play(replace(scene, seconds=6.0), tmp_path))
    assert not report.findings, report.text
    assert report.counts["right"] + report.counts["right, with tokens of another node"] > 0
    if scene.marks:
        assert any(" at " in told for told in report.counts), report.text
