"""`--remake-frames` writes the expected pictures of the dashboard again; look at the difference before you commit it."""

import sys
from pathlib import Path

import pytest

for room in ("control", "core", "live"):  # where a control room to connect to is made, and where a terminal is read
    sys.path.append(str(Path(__file__).parent.parent / room))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--remake-frames", action="store_true", help="write tests/tui/frames again")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # textual's


@pytest.fixture
def remake(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--remake-frames"))
