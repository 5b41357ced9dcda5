"""Property tests of the `long` profile may take an hour each."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.hypothesis_profile == "long":
        for item in items:
            item.add_marker(pytest.mark.timeout(3600))
