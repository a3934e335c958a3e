"""The reward pipeline: what each stage says, how they add up, and what the configuration refuses."""

import math
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.config import load
from libra.config.preflight import check
from libra.config.schema import Config, TranscriptsConfig
from libra.config.worlds import CalculatorConfig, FormatStage, LengthStage, RewardConfig, VerifiableStage
from libra.controller.episodes import Episodes, Transcripts
from libra.core import commands as c
from libra.core import events as e
from libra.core.batch import stage_means
from libra.env.protocol import Ended, Observation
from libra.env.rewards import Record, worth
from libra.errors import ConfigError, EnvError, PreflightError
from libra.telemetry.transcripts import TranscriptWriter
from libra.wire import messages as m

CONFIGS = Path(__file__).parents[2] / "configs"
RECORDS = st.builds(
    lambda judged, turns, formed, n: Record(judged, turns, min(formed, turns), n),
    st.sampled_from([0.0, 1.0, 0.5]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 5000),
)


def of(*stages):
    return RewardConfig(stage=stages)


def value(stage, record):
    return worth(of(stage), record).stages[0]


@given(RECORDS)
def test_by_default_the_reward_is_the_environments_own_judgement(record):
    for config in (RewardConfig(), load(CONFIGS / "quickstart.toml").reward):
        assert worth(config, record).reward == record.judged
        assert config.names == ("verifiable",)


def test_format_is_the_share_of_formed_turns():
    stage = FormatStage(weight=0.2)
    assert value(stage, Record(0.0, 4, 3, 9)) == 0.75
    assert worth(of(stage), Record(0.0, 4, 3, 9)).reward == pytest.approx(0.15)
    assert value(stage, Record(0.0, 0, 0, 0)) == 0.0


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (100, 0), (101, -0.02), (125, -0.5), (150, -1), (9999, -1)])
def test_length_costs_nothing_up_to_the_soft_limit_and_all_after_the_ramp(tokens, expected):
    said = value(LengthStage(soft_limit_tokens=100, ramp_tokens=50), Record(1.0, 1, 1, tokens))
    assert said == pytest.approx(expected)
    assert math.copysign(1, said) == (1 if expected == 0 else -1)


@given(RECORDS)
def test_values_keep_their_bounds_and_the_reward_is_their_weighted_sum(record):
    config = of(
        VerifiableStage(),
        FormatStage(weight=0.25),
        LengthStage(weight=0.5, soft_limit_tokens=1000, ramp_tokens=500),
    )
    said = worth(config, record)
    judged, form, length = said.stages
    assert judged == record.judged
    assert 0 <= form <= 1
    assert -1 <= length <= 0
    assert said.reward == pytest.approx(judged + 0.25 * form + 0.5 * length)


def test_a_stage_without_weight_is_measured_and_does_not_count():
    said = worth(of(VerifiableStage(), FormatStage(weight=0.0)), Record(1.0, 2, 1, 9))
    assert (said.reward, said.stages) == (1.0, (1.0, 0.5))


@pytest.mark.parametrize("judged", [math.nan, math.inf])
def test_a_judgement_that_is_no_number_is_a_fault_of_the_environment(judged):
    with pytest.raises(EnvError, match="finite"):
        worth(RewardConfig(), Record(judged, 1, 1, 1))


# --- configuration


def faults(tmp_path, text):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, PreflightError)) as caught:
        check(load(path), machine=False)
    return "\n".join(caught.value.problems)


def test_stages_are_composed_in_the_configuration(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        '[[reward.stage]]\nname = "verifiable"\n[[reward.stage]]\nname = "format"\nweight = 0.3\n'
        '[[reward.stage]]\nname = "length_penalty"\nsoft_limit_tokens = 80\nramp_tokens = 20\n'
    )
    config = load(path)
    check(config, machine=False)
    assert config.reward == of(
        VerifiableStage(), FormatStage(weight=0.3), LengthStage(soft_limit_tokens=80, ramp_tokens=20)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "fromat"', 'reward.stage.0.name.*"?fromat.*verifiable.*format.*length_penalty.*nearest'),
        ('name = "format"\nweight = -0.1', "reward.stage.0.weight.*got -0.1.*at least 0"),
        ('name = "length_penalty"', "reward.stage.0.soft_limit_tokens.*missing"),
        ('name = "length_penalty"\nsoft_limit_tokens = 8\nramp_tokens = 0', "reward.stage.0.ramp_tokens.*got 0"),
        ('name = "format"\nsoft_limit_tokens = 8', "reward.stage.0.soft_limit_tokens.*unknown key"),
        ('name = "format"\n[[reward.stage]]\nname = "format"', "reward.stage.1.name.*twice"),
        ('name = "format"\nweight = 0.0', "every weight is 0"),
    ],
)
def test_bad_stages_are_refused_with_their_place(tmp_path, text, said):
    import re

    problems = faults(tmp_path, f"[[reward.stage]]\n{text}\n")
    assert re.search(said, problems), problems


def test_no_stage_at_all_is_refused(tmp_path):
    assert "reward.stage" in faults(tmp_path, "[reward]\nstage = []\n")


# --- in the controller


class OneTool:
    """A session that is told what each turn is answered."""

    def __init__(self, answers):
        self._answers = iter(answers)

    async def prompt(self):
        return [1, 2]

    def turn_budget(self, context_tokens):
        return 4

    async def act(self, sampled):
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self):
        pass


class OneSession:
    def __init__(self, answers):
        self._answers = answers

    def open(self, split, seed, ordinal, fault_key):
        return OneTool(self._answers)


def unwritten(path: Path) -> Transcripts:
    """Transcripts of which none is kept."""
    return Transcripts(TranscriptWriter(path, TranscriptsConfig(keep="none"), print), lambda _: "")


def last_event(answers, reward, path):
    """What the controller tells the core at last, of an episode whose turns are answered so."""
    told: list[e.AnyEvent] = []

    async def run():
        async with anyio.create_task_group() as tasks:
            episodes = Episodes(OneSession(answers), reward, 0, 1.0, tasks, lambda: 0.0, told.append, unwritten(path))  # type: ignore[arg-type]
            episodes.open(c.OpenTrajectory(1, 7, "train", 0, 0, 0))
            await anyio.wait_all_tasks_blocked()
            for turn in range(len(answers)):
                episodes.all[7].generating = turn + 10
                episodes.took(m.TurnDone(turn + 10, 7, [3, 4], [-0.5, -0.5], [0, 0], "stop"), 0)
                episodes.act(c.Act(turn + 20, 7))
                await anyio.wait_all_tasks_blocked()

    anyio.run(run)
    return told[-1]


def test_an_episode_ends_with_what_its_stages_say(tmp_path: Path):
    seen = Observation([5], "t", "ok", 0.0, False)
    botched = Observation([6], "none", "error", 0.0, False, formed=False)
    stages = of(VerifiableStage(), FormatStage(weight=0.3), LengthStage(weight=1, soft_limit_tokens=4, ramp_tokens=4))
    end = last_event([seen, botched, Ended(1.0, "right")], stages, tmp_path)
    assert isinstance(end, e.EpisodeEnded)
    assert end.reward_stages == pytest.approx((1.0, 2 / 3, -0.5))
    assert end.reward == pytest.approx(1.0 + 0.2 - 0.5)


def test_a_turn_for_which_there_was_no_room_is_no_turn(tmp_path: Path):
    botched = Observation([6], "none", "error", 0.0, False, formed=False)
    end = last_event([botched, Ended(0.0, "no room", None)], of(FormatStage(weight=1)), tmp_path)
    assert isinstance(end, e.EpisodeEnded)
    assert end.reward_stages == (0.0,)


def test_a_failed_trajectory_has_no_reward(tmp_path: Path):
    seen = Observation([5], "t", "ok", 0.0, False)
    for broken in (EnvError("gone"), Ended(math.nan, "?")):
        end = last_event([seen, broken], of(VerifiableStage(), FormatStage(weight=1)), tmp_path)
        assert isinstance(end, e.TrajectoryFailed)


def test_the_means_are_over_trajectories_that_tell_their_stages():
    assert stage_means(("a", "b"), [(1.0, 0.5), (0.0, 1.0)]) == {"a": 0.5, "b": 0.75}
    assert stage_means(("a",), [(), ()]) == {}


def test_the_calculators_environment_says_which_turns_have_a_legal_form(task_of, tool_here):
    from libra.env.calculator.session import CalculatorSession
    from libra.env.calculator.tokens import encode

    async def run(*turns):
        session = CalculatorSession(task_of("43 - 12 + 7"), CalculatorConfig(), tool_here)
        await session.prompt()
        return [(await session.act(encode(turn))).formed for turn in turns]

    called = anyio.run(run, "<call> 43 - 12 <run>", "<call> 43 - <run>", "<solve> 3 <run>", "<answer> 37 <end>")
    assert called == [True, False, False, True]
    assert anyio.run(run, "<call> 1 - 12 <run>", "<answer> <end>") == [True, False]
    assert anyio.run(run, "") == [None]


def test_the_configuration_survives_the_trip_to_other_processes():
    import msgspec

    config = Config(reward=of(VerifiableStage(), FormatStage(weight=0.0)))
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config
