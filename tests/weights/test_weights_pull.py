"""What a pull returns: whole parameters, exact, from any number of sources and any cut."""

import threading

import pytest
import torch
from weights_parts import INCARNATION, TOKEN, cut, publishers

from libra.errors import WeightsError
from libra.weights.layout import Range, Shard
from libra.weights.puller import Puller


@pytest.fixture
def puller():
    with_links = Puller(TOKEN, INCARNATION)
    yield with_links
    with_links.close()


def model(version: int) -> dict[str, torch.Tensor]:
    seeded = torch.Generator().manual_seed(version)
    return {
        "embed": torch.randn(101, 7, generator=seeded),
        "norm": torch.randn(2, generator=seeded),
        "scale": torch.randn((), generator=seeded),
        "empty": torch.zeros(0, 3),
        "wide": torch.randn(5, 60_001, generator=seeded),
        "steps": torch.arange(9) + version,
    }


def publish(served, version: int, tensors: dict[str, torch.Tensor]) -> None:
    for publisher, shards in zip(served, cut(tensors, len(served)), strict=True):
        publisher.publish(version, shards)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_version_is_assembled_exactly_from_uneven_shards(puller: Puller, ranks: int) -> None:
    with publishers(ranks) as served:
        for version in range(4):
            publish(served, version, model(version))
            got, tensors = puller.pull(version, [p.address for p in served], 30)
            assert got == version
            assert tensors.keys() == model(version).keys()
            for name, expected in model(version).items():
                assert tensors[name].dtype == expected.dtype
                assert tensors[name].shape == expected.shape
                assert torch.equal(tensors[name], expected), name


def test_floating_point_is_published_in_the_chosen_type_and_integers_as_they_are(puller: Puller) -> None:
    with publishers(2, dtype=torch.bfloat16) as served:
        publish(served, 0, model(0))
        _, tensors = puller.pull(0, [p.address for p in served], 30)
    assert tensors["steps"].dtype == torch.int64
    assert torch.equal(tensors["wide"], model(0)["wide"].to(torch.bfloat16))


def test_ranges_give_only_those_elements(puller: Puller) -> None:
    ranges = [Range("wide", 1000, 299_000), Range("embed", 3, 4), Range("wide", 0, 5), Range("scale", 0, 1)]
    with publishers(3) as served:
        publish(served, 0, model(0))
        addresses = [p.address for p in served]
        for _ in range(2):  # the second one is told the digest that the first one's reply left behind
            version, parts = puller.pull_ranges(0, addresses, ranges, 30)
            assert version == 0
            for want, part in zip(ranges, parts, strict=True):
                assert torch.equal(part, model(0)[want.name].reshape(-1)[want.start : want.stop])
        with pytest.raises(WeightsError, match="missing"):
            puller.pull_ranges(0, addresses, [Range("norm", 0, 3)], 30)
        with pytest.raises(WeightsError, match="no source publishes"):
            puller.pull_ranges(0, addresses, [Range("nothing", 0, 1)], 30)
        assert puller.pull(0, addresses, 30)[0] == 0


def test_columns_of_a_matrix_arrive_from_many_small_shards_of_each_source(puller: Puller) -> None:
    matrix = torch.arange(12.0 * 10).view(12, 10)
    with publishers(2) as served:
        for rank, publisher in enumerate(served):
            low, high = (0, 3) if rank == 0 else (3, 10)
            publisher.publish(0, [Shard("m", (12, 10), r * 10 + low, matrix[r, low:high]) for r in range(12)])
        _, tensors = puller.pull(0, [p.address for p in served], 30)
    assert torch.equal(tensors["m"], matrix)


@pytest.mark.parametrize(
    ("starts", "sizes", "complaint"),
    [((0, 4), (4, 5), "missing"), ((0, 3), (4, 7), "given twice"), ((0, 0), (10, 10), "given twice")],
)
def test_elements_that_come_never_or_twice_are_refused_by_name(puller: Puller, starts, sizes, complaint: str) -> None:
    with publishers(2) as served:
        for publisher, start, size in zip(served, starts, sizes, strict=True):
            publisher.publish(0, [Shard("w", (10,), start, torch.zeros(size))])
        with pytest.raises(WeightsError, match=f"w: elements .* {complaint}"):
            puller.pull(0, [p.address for p in served], 30)


def test_sources_that_disagree_about_a_shape_are_refused(puller: Puller) -> None:
    with publishers(2) as served:
        served[0].publish(0, [Shard("w", (4, 2), 0, torch.zeros(4))])
        served[1].publish(0, [Shard("w", (8,), 4, torch.zeros(4))])
        with pytest.raises(WeightsError, match="another one"):
            puller.pull(0, [p.address for p in served], 30)


def test_a_pulled_version_stays_as_it_is_during_the_next_pull_and_memory_is_reused(puller: Puller) -> None:
    with publishers(1) as served:
        addresses = [served[0].address]
        memory = []
        before: dict[str, torch.Tensor] = {}
        for version in range(6):
            publish(served, version, model(version))
            _, tensors = puller.pull(version, addresses, 30)
            memory.append(tensors["wide"].data_ptr())
            if version:
                assert torch.equal(before["wide"], model(version - 1)["wide"])
            before = tensors
    assert len(set(memory)) == 2


def test_a_failed_pull_leaves_the_last_version_untouched(puller: Puller) -> None:
    with publishers(1) as served:
        publish(served, 0, model(0))
        _, tensors = puller.pull(0, [served[0].address], 30)
        publish(served, 1, model(1))
        with publishers(1) as other:
            other[0].publish(1, [Shard("wide", (9,), 0, torch.zeros(9))])
            with pytest.raises(WeightsError):
                puller.pull(1, [served[0].address, other[0].address], 30)
        assert torch.equal(tensors["wide"], model(0)["wide"])


def test_a_shard_that_changes_its_shape_or_a_version_that_goes_back_is_refused_by_the_publisher() -> None:
    with publishers(1) as served:
        served[0].publish(3, [Shard("w", (4,), 0, torch.zeros(4))])
        with pytest.raises(WeightsError, match="other shards"):
            served[0].publish(4, [Shard("w", (5,), 0, torch.zeros(5))])
        with pytest.raises(WeightsError, match="must grow"):
            served[0].publish(3, [Shard("w", (4,), 0, torch.zeros(4))])
        assert served[0].newest == 3
    with publishers(1) as fresh, pytest.raises(WeightsError, match="1-D"):
        fresh[0].publish(0, [Shard("w", (2, 2), 0, torch.zeros(2, 2))])


def test_a_version_that_is_still_to_come_is_waited_for_until_the_deadline(puller: Puller) -> None:
    with publishers(1) as served:
        publish(served, 0, model(0))
        with pytest.raises(WeightsError, match=served[0].address):
            puller.pull(1, [served[0].address], 0.3)
        got = []
        waiting = threading.Thread(target=lambda: got.append(puller.pull(1, [served[0].address], 60)[0]))
        waiting.start()
        publish(served, 1, model(1))
        waiting.join(60)
        assert got == [1]
