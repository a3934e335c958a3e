"""The look-up with its real workers and its database on disk."""

from pathlib import Path

import anyio
import pytest

from libra.config import load
from libra.config.preflight import check
from libra.config.worlds import LookupConfig, ToolFault
from libra.env.lookup.corpus import facts
from libra.env.lookup.tasks import draw_task
from libra.env.protocol import Ended
from libra.env.registry import environment
from libra.errors import EnvError

pytestmark = pytest.mark.process
CONFIGS = Path(__file__).parents[2] / "configs"


async def solve(env, config, ordinal):
    """Looks up all that a held-out question asks for."""
    task = draw_task(config, 0, "heldout", ordinal)
    session = env.open("heldout", 0, ordinal, (ordinal, 0, 0))
    await session.prompt()
    for name, relation in zip(task.words, task.relations, strict=False):
        answer = await session.act(env.encode(f"<find> {name} {relation} <run>"))
        if isinstance(answer, Ended):
            return answer
    return await session.act(env.encode(f"<answer> {task.answer} <end>"))


@pytest.fixture
def play():
    def run(n, config=LookupConfig()):  # noqa: B008 - frozen
        env, played = environment(config), [None] * n

        async def one(i):
            try:
                played[i] = await solve(env, config, i)
            except EnvError as error:
                played[i] = error

        async def main():
            with anyio.fail_after(60):
                async with env.running(), anyio.create_task_group() as tasks:
                    for i in range(n):
                        tasks.start_soon(one, i)

        anyio.run(main)
        return played

    return run


def test_right_play_is_rewarded(play):
    assert play(40) == [Ended(1.0, "right")] * 40


def test_crashing_tools_fail_trajectories_and_others_go_on(play):
    played = play(12, LookupConfig(fault=ToolFault(kind="crash", rate=0.2)))
    assert 0 < sum(isinstance(end, EnvError) for end in played) < 12
    assert all(end.reward == 1.0 for end in played if isinstance(end, Ended))


def test_a_tool_that_always_fails_gives_no_reward_and_no_failure(play):
    played = play(8, LookupConfig(fault=ToolFault(kind="fail")))
    assert all(isinstance(end, Ended) and end.reward == 0.0 for end in played)


def test_hostile_queries_are_errors_of_the_tool_and_its_workers_live_on():
    env = environment(LookupConfig())

    async def main():
        async with env.running():
            before = env._pool.pids  # type: ignore[attr-defined]
            for query in ("a AND", '"', "(" * 90 + "a", "x" * 10_000, "; DROP TABLE facts", "\0"):
                reply = await env._pool.call("lookup", query)  # type: ignore[attr-defined]
                assert reply.status == "error"
            reply = await env._pool.call("lookup", "france capital")  # type: ignore[attr-defined]
            assert reply.output == b"France | capital | Paris"
            assert env._pool.pids == before  # type: ignore[attr-defined]

    anyio.run(main)


def test_the_database_is_gone_with_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = environment(LookupConfig())

    async def main():
        async with env.running():
            assert list(tmp_path.glob("libra-lookup-*/facts.db"))

    anyio.run(main)
    assert not list(tmp_path.glob("libra-lookup-*"))


def test_its_configuration_stands(tmp_path):
    config = load(CONFIGS / "lookup.toml")
    check(config, machine=False)
    assert isinstance(config.env, LookupConfig)
    assert len(facts()) > 500
