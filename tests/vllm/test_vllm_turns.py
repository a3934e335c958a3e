"""Turns on a vLLM engine of one and of two ranks: what is sampled, how turns end, what a prefix is worth."""

from collections.abc import Iterator

import pytest
from vllm_stage import VOCABULARY, EngineOnStage, Stage, gap, network, turn

from libra.wire import messages as m

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        stage.publish(0, network(0))
        yield stage


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def engine(stage: Stage, request: pytest.FixtureRequest) -> Iterator[EngineOnStage]:
    engine = stage.engine(request.param)
    engine.install(0)
    yield engine
    engine.end()


def test_log_probabilities_are_the_trainers(engine: EngineOnStage) -> None:
    given = [turn(i, context=3 + i, new=12) for i in range(12)]
    done = engine.turns(*given)
    assert all(len(d.tokens) == 12 or d.finish == "stop" for d in done)
    assert max(gap(network(0), g, d) for g, d in zip(given, done, strict=True)) < 1e-4
    assert all(set(d.versions) == {0} for d in done)
