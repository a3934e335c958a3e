"""Rows of the cache: bounds, eviction, and contents that survive every move."""

import random

import pytest
import torch

from libra.engine.kv import LENGTH_STEP_TOKENS, PADDING, Row, RowCache


def cache_of(kv_tokens: int) -> RowCache:
    return RowCache(2, 1, 2, kv_tokens, torch.device("cpu"), torch.float32)


def claim(cache: RowCache, traj: int, context: list[int], room_tokens: int) -> tuple[Row, int]:
    claimed = cache.claim(traj, context, room_tokens)
    assert claimed is not None
    return claimed


def test_a_prefix_is_found_again_and_the_last_context_token_is_never_counted_as_held() -> None:
    cache = cache_of(100)
    row, reused = claim(cache, 1, [5, 6, 7], 10)
    assert reused == 0
    cache.keep(1, row, [5, 6, 7, 8])
    assert cache.used_tokens == 4
    again, reused = claim(cache, 1, [5, 6, 7, 8, 9], 12)
    assert again is row
    assert reused == 4
    cache.keep(1, row, [5, 6, 7, 8])
    assert claim(cache, 1, [5, 6, 7, 8], 12)[1] == 3


def test_another_context_is_computed_afresh() -> None:
    cache = cache_of(100)
    row, _ = claim(cache, 1, [5, 6, 7], 10)
    cache.keep(1, row, [5, 6, 7, 8])
    assert claim(cache, 1, [5, 6, 9, 8, 1], 12)[1] == 0
    assert cache.used_tokens == 12


def test_forget_frees_the_prefix() -> None:
    cache = cache_of(100)
    row, _ = claim(cache, 1, [5], 10)
    cache.keep(1, row, [5, 6])
    cache.forget(1)
    cache.forget(1)
    assert cache.used_tokens == 0
    assert claim(cache, 1, [5, 6, 7], 10)[1] == 0


def test_the_least_recently_used_prefix_goes_first() -> None:
    cache = cache_of(40)
    for traj in (1, 2, 3):
        cache.keep(traj, claim(cache, traj, [traj], 10)[0], [traj] * 10)
    cache.keep(1, claim(cache, 1, [1] * 11, 12)[0], [1] * 11)
    claim(cache, 4, [4], 15)
    assert claim(cache, 3, [3] * 11, 11)[1] == 10
    assert cache.used_tokens <= 40
    cache.drop_prefixes()
    assert cache.claim(2, [2] * 11, 11) is not None


def test_a_claim_that_cannot_fit_beside_the_live_rows_evicts_nothing() -> None:
    cache = cache_of(30)
    claim(cache, 1, [1], 20)
    cache.keep(2, claim(cache, 2, [2], 8)[0], [2] * 8)
    assert cache.claim(3, [3], 11) is None
    assert cache.used_tokens == 28
    assert claim(cache, 2, [2] * 9, 9)[1] == 8


def test_a_single_turn_may_fill_all_the_room() -> None:
    for kv_tokens in (1, 7, 16, 17, 1000):
        cache = cache_of(kv_tokens)
        cache.keep(1, claim(cache, 1, [0], kv_tokens)[0], [0])
        assert cache.claim(2, [0], kv_tokens) is not None


@pytest.mark.parametrize("kv_tokens", [60, 300, 1500])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_hold_and_contents_survive_whatever_the_order_of_claims(seed, kv_tokens) -> None:
    """Every live or idle row carries its trajectory's number in each of its tokens; no move may lose it."""
    rng = random.Random(seed)
    cache = cache_of(kv_tokens)
    live: dict[int, Row] = {}
    context: dict[int, list[int]] = {}
    reuses = waits = 0

    def holds(traj: int, row: Row, tokens: int) -> bool:
        return all(bool((kv[:, row.index, :, :tokens] == traj).all()) for kv in cache.layers)

    for _ in range(400):
        traj = rng.randrange(1, 30)
        if traj in live:
            row = live.pop(traj)
            assert holds(traj, row, row.tokens)
            match rng.randrange(3):
                case 0:
                    cache.free(row)
                case _:
                    context[traj] = [traj] * row.tokens
                    cache.keep(traj, row, context[traj])
        elif rng.random() < 0.1:
            cache.forget(traj)
        else:
            tokens = [*context.get(traj, []), traj][: kv_tokens // 2]
            room = min(len(tokens) + rng.randrange(1, 30), kv_tokens)
            claimed = cache.claim(traj, tokens, room)
            if claimed is None:
                waits += 1
            else:
                row, reused = claimed
                assert holds(traj, row, reused)
                reuses += reused > 0
                for kv in cache.layers:
                    kv[:, row.index, :, reused:room] = traj
                live[traj] = row
        if rng.random() < 0.2:
            cache.pack()
            top = max((row.index + 1 for row in live.values()), default=0)
            assert top <= len(live) + len(live) // 4 + 2
        assert len({row.index for row in live.values()}) == len(live)
        assert sum(row.tokens for row in live.values()) <= cache.used_tokens <= kv_tokens
        assert cache.area_tokens <= PADDING * kv_tokens + LENGTH_STEP_TOKENS
    assert all(holds(traj, row, row.tokens) for traj, row in live.items())
    assert reuses > 0 or kv_tokens == 60
    assert waits > 0 or kv_tokens == 1500
