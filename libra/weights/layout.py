"""What is published, and how it is said on a weights link.

A parameter is named by its *logical* tensor: its whole shape, flattened in row-major order, cut into ranges of elements.
A `Shard` is such a range with its values. `libra.train` makes shards from `DTensor` placements, the publisher serves
them, the puller assembles them; none of the three needs to know how the other two cut the tensor.

    puller                                publisher (one core rank)
      Hello ------------------------------->  token and incarnation are checked before anything else is read
      Pull(version, ranges) --------------->
      <------------- Offer(what will come) |  Gone(newest)  |  Refused(reason)
      <---- Chunk(n), n raw bytes, Chunk ...  or Gone in place of any chunk
      <------------------------ Done(digest)
      Pin(version) ------------------------>  only after two `Gone` in a row
      <-- Pinned(version) | Gone | Refused

**Digest**: CRC-32 of a reply's raw bytes in wire order. It is there against faults (a torn buffer, a misplaced piece, a
bad link), not against an attacker, who would need the token. zlib's runs at 2.4 GB/s on one core where BLAKE2b runs at
0.35 and would be slower than the copy it guards.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from msgspec import Struct

from libra.errors import WeightsError

PROTOCOL = 1
CHUNK_BYTES = 1 << 20
"""Bytes between two looks at the buffer's generation."""
NEWEST = -1
"""As a version in `Pin`: whatever is newest when the pin is granted."""

_DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
DTYPES: dict[str, torch.dtype] = {str(d).removeprefix("torch."): d for d in _DTYPES}
"""The types that can be published, by their name on the wire."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of `dtype` on the wire; WeightsError for a type that cannot be published."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise WeightsError(f"{dtype} cannot be published; expected one of {', '.join(DTYPES)}")
    return name


class Shard(NamedTuple):
    """Elements [start, start + len(data)) of the flattened logical tensor `name`.

    `shape` is the whole logical shape. `data` is 1-D and contiguous, on any device, and may be empty (a rank that holds
    nothing of the parameter may say so, or leave it out). Over all core ranks each element appears exactly once: of a
    replicated tensor one rank gives the data. One rank may give several shards of one parameter.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    data: torch.Tensor


class Range(Struct, frozen=True, array_like=True):
    """Elements [start, stop) of the flattened logical tensor `name`: what a consumer wants."""

    name: str
    start: int
    stop: int


class Parameter(Struct, frozen=True, array_like=True):
    """One logical tensor as published."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Segment(Struct, frozen=True, array_like=True):
    """Elements [start, stop) of a logical tensor, in wire order.

    `target` is an index into the offer's `params`, or into the request's `ranges` where it has any.
    """

    target: int
    start: int
    stop: int


# --- the vocabulary of the link


class _Message(Struct, frozen=True, tag=True):
    pass


class Hello(_Message, frozen=True, tag=True):
    protocol: int
    token: str
    incarnation: str


class Pull(_Message, frozen=True, tag=True):
    """Send `version`, all of it or (`ranges`) parts. A publisher that is behind waits for it, `wait_s` at most."""

    version: int
    ranges: tuple[Range, ...] | None
    wait_s: float


class Pin(_Message, frozen=True, tag=True):
    """Keep `version` (or `NEWEST`) for this link until its pull is done or `hold_s` have passed.

    A version still to come is reserved at once. `wait_s`: how long to wait for the end of another reader's pin.
    """

    version: int
    wait_s: float
    hold_s: float


class Pinned(_Message, frozen=True, tag=True):
    version: int


class Offer(_Message, frozen=True, tag=True):
    """What the chunks that follow hold, one segment after the other without gaps."""

    version: int
    params: tuple[Parameter, ...]
    segments: tuple[Segment, ...]


class Chunk(_Message, frozen=True, tag=True):
    """`n_bytes` raw bytes follow this frame; all of them belong to the offered version."""

    n_bytes: int


class Done(_Message, frozen=True, tag=True):
    digest: int


class Gone(_Message, frozen=True, tag=True):
    """The version is overwritten; `newest` can be had."""

    newest: int


class Refused(_Message, frozen=True, tag=True):
    reason: str


Request = Pull | Pin
Reply = Offer | Chunk | Done | Gone | Pinned | Refused


class Plan(NamedTuple):
    """One reply: its offer's parameters and segments, and where their bytes lie in a buffer, [first, last)."""

    params: tuple[Parameter, ...]
    segments: tuple[Segment, ...]
    spans: tuple[tuple[int, int], ...]


class _Place(NamedTuple):
    """Where one shard lies: elements [start, stop) of its parameter, at byte `offset` of the buffer."""

    start: int
    stop: int
    offset: int


class BufferLayout:
    """Where each shard lies in one flat host buffer. Fixed by the first publication; `key` is compared by later ones."""

    def __init__(self, shards: Iterable[Shard], dtype: torch.dtype | None) -> None:
        self.key: list[tuple[str, tuple[int, ...], int, int]] = []
        self.views: list[tuple[int, int, torch.dtype]] = []
        self._params: dict[str, Parameter] = {}
        self._places: dict[str, list[_Place]] = {}
        end = 0
        for shard in shards:
            published = dtype if dtype is not None and shard.data.is_floating_point() else shard.data.dtype
            self._check(shard, published)
            end += -end % published.itemsize
            n_bytes = shard.data.numel() * published.itemsize
            self.key.append(shard_key(shard))
            self.views.append((end, end + n_bytes, published))
            self._places[shard.name].append(_Place(shard.start, shard.start + shard.data.numel(), end))
            end += n_bytes
        self.n_bytes = end
        self._all = self._plan(
            tuple((i, Range(p.name, 0, _count(p.shape))) for i, p in enumerate(self._params.values()))
        )

    def _check(self, shard: Shard, dtype: torch.dtype) -> None:
        name, shape, start, data = shard
        if data.dim() != 1 or not data.is_contiguous():
            raise WeightsError(f"shard of {name}: data of shape {tuple(data.shape)}; expected 1-D and contiguous")
        if start < 0 or start + data.numel() > _count(shape):
            raise WeightsError(
                f"shard of {name}: elements {start} to {start + data.numel()} of a tensor of shape {shape}"
            )
        param = Parameter(name, tuple(shape), dtype_name(dtype))
        if self._params.setdefault(name, param) != param:
            raise WeightsError(f"shards of {name} disagree: {self._params[name]} and {param}")
        self._places.setdefault(name, [])

    def plan(self, ranges: tuple[Range, ...] | None) -> Plan:
        """The part of this buffer that falls into `ranges`; all of it for None."""
        return self._all if ranges is None else self._plan(tuple(enumerate(ranges)))

    def _plan(self, wanted: tuple[tuple[int, Range], ...]) -> Plan:
        segments: list[Segment] = []
        spans: list[tuple[int, int]] = []
        for target, want in wanted:
            for place in self._places.get(want.name, ()):
                start, stop = max(want.start, place.start), min(want.stop, place.stop)
                if start >= stop:
                    continue
                size = DTYPES[self._params[want.name].dtype].itemsize
                first = place.offset + (start - place.start) * size
                last = first + (stop - start) * size
                segments.append(Segment(target, start, stop))
                if spans and spans[-1][1] == first:
                    spans[-1] = (spans[-1][0], last)
                else:
                    spans.append((first, last))
        names = dict.fromkeys(want.name for _, want in wanted)
        params = tuple(self._params[name] for name in names if name in self._params)
        return Plan(params, tuple(segments), tuple(spans))


def shard_key(shard: Shard) -> tuple[str, tuple[int, ...], int, int]:
    """What of a shard must stay the same from one version to the next."""
    return shard.name, tuple(shard.shape), shard.start, shard.data.numel()


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
