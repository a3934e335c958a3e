"""A workload's trajectory under way: whatever is cut or lost, it samples what it has to."""

from hypothesis import given
from hypothesis import strategies as st

from libra.config.worlds import WorkloadConfig
from libra.workload import TraceTrajectory, TraceTurn
from libra.workload.walk import CONTINUE, Walk

turns = st.lists(
    st.builds(TraceTurn, st.integers(1, 40), st.just("t"), st.just(0.5), st.just("ok"), st.integers(0, 50)),
    min_size=1,
    max_size=4,
)


@given(turns=turns, cap=st.integers(1, 30), over=st.sampled_from(["overrun", "continue"]), data=st.data())
def test_a_trajectory_samples_exactly_its_tokens_however_it_is_cut(turns, cap, over, data) -> None:
    truth = TraceTrajectory("g", 0, "", 10, tuple(turns))
    walk = Walk(truth, WorkloadConfig(turn_tokens=cap, over_cap=over), truth.sampled_tokens, truth.context_tokens)
    acts, ended = 0, False
    while not ended:
        told = walk.tell()
        assert 1 <= told <= cap
        finish, left = "cut", told
        while finish == "cut" and left > 0:  # as the core does
            asked = walk.tokens_of(left)
            assert asked == walk.tokens_of(left), "asking again, after its engine was lost, changes nothing"
            got = data.draw(st.integers(1, asked))
            finish = walk.took(got, was_cut=got < asked)
            left -= got
            assert finish != "length" or got == asked
        back = walk.act()
        assert back.ended or back.tool in ("t", CONTINUE)
        acts, ended = acts + 1, back.ended
    assert walk.sampled_in_all == truth.sampled_tokens
    assert walk.context == truth.context_tokens
    assert acts >= len(turns)
