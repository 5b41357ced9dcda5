"""For every test of a command: the environment says nothing, the check level stays as it was."""

import pytest

from kvdist import check


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KVDIST_CHECK", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(check, "level", check.level)
