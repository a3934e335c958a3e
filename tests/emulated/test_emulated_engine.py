"""The emulated rollout role: turns, cuts, weights."""

from emulated_parts import Running

from libra.rank.emulated_engine import EmulatedEngine
from libra.wire import messages as m


def engine(epoch: int = 0) -> Running:
    return Running(EmulatedEngine, 3, "rollout", bucket=0, epoch=epoch)


def test_a_turn_comes_back_whole_with_the_version_that_sampled_it() -> None:
    with engine() as role:
        role.order(m.Install(1, 0, ("",)))
        assert role.says(m.Installed).version == 0
        role.order(m.EmulatedTurn(2, 7, 1000, 300))
        (done,) = role.says(m.EmulatedTurnsDone).turns
    assert (done.cmd, done.traj, done.tokens, done.oldest, done.newest, done.cut) == (2, 7, 300, 0, 0, False)


def test_a_cut_turn_gives_what_it_has_and_the_rest_can_be_sampled_elsewhere() -> None:
    with engine() as here, engine() as there:
        for role in (here, there):
            role.order(m.Install(1, 0, ("",)))
            role.says(m.Installed)
        here.order(m.EmulatedTurn(2, 7, 100, 20_000))
        here.order(m.Cut(7))
        cut = here.says(m.EmulatedTurnsDone).turns[0]
        assert cut.traj == 7
        assert cut.tokens < 20_000 or not cut.cut
        there.order(m.EmulatedTurn(4, 7, 100 + cut.tokens, 20_000 - cut.tokens))
        rest = there.says(m.EmulatedTurnsDone).turns[0] if cut.cut else None
    assert cut.tokens + (rest.tokens if rest else 0) == 20_000


def test_the_cut_of_a_turn_that_is_over_changes_nothing() -> None:
    with engine() as role:
        role.order(m.Install(1, 0, ("",)))
        role.order(m.EmulatedTurn(2, 7, 100, 10))
        role.says(m.EmulatedTurnsDone)
        role.order(m.Cut(7), m.Forget([7]), m.EmulatedTurn(3, 7, 100, 10))
        assert role.says(m.EmulatedTurnsDone).turns[0].cmd == 3


def test_weights_are_swapped_under_a_running_turn() -> None:
    with engine() as role:
        role.order(m.Install(1, 0, ("",)))
        role.says(m.Installed)
        role.order(m.EmulatedTurn(2, 7, 100, 15_000), m.Install(3, 1, ("",)))
        installed = role.says(m.Installed)
        done = role.says(m.EmulatedTurnsDone).turns[0]
    assert installed.version == 1
    assert installed.seconds > 0
    assert (done.oldest, done.newest) == (0, 1)


def test_an_engine_that_joins_in_the_middle_of_a_run_takes_its_activation() -> None:
    with engine(epoch=1) as role:
        role.order(m.Install(1, 0, ("",)))
        assert role.says(m.Installed).seconds == role.link.config.cost.hardware.transition.engine_activation_s
