"""One warm start for all live tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warm")
