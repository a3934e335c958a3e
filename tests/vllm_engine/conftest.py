"""These tests need vLLM (`just setup-vllm`); without it there is nothing to collect here.

One stage and two engines, of one and of two ranks, serve all tests of a session that do not break them.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vllm_stage import EngineOnStage, Stage

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
TEST_S = float(os.environ.get("LIBRA_VLLM_TEST_S", "300"))
"""Of one test, the imports of vLLM included where it is the first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.process)
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def stage() -> Iterator["Stage"]:
    from vllm_stage import Stage, network

    with Stage() as stage:
        stage.publish(0, network(0))
        yield stage


@pytest.fixture(scope="session", params=[1, 2], ids=["tp1", "tp2"])
def engine(stage: "Stage", request: pytest.FixtureRequest) -> Iterator["EngineOnStage"]:
    """It holds whatever version the test before has left."""
    engine = stage.engine(request.param)
    yield engine
    engine.end()
