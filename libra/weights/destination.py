"""Where a pull puts what it gets: one flat host tensor for each wanted piece, and the proof that all of it came once.

    begin(ranges) -> room(offer, source) for each source -> check() -> parameters() or parts()

A `Puller` keeps two of these and fills them in turn. Tensors are reused while names, sizes and types stay the same.
"""

import math
from typing import NamedTuple

import torch

from libra.errors import WeightsError
from libra.weights.layout import DTYPES, Offer, Parameter, Range


class _Piece(NamedTuple):
    """Elements [first, last) of parameter `param`, in `flat`; `memory` are the same bytes."""

    param: Parameter
    first: int
    last: int
    flat: torch.Tensor
    memory: memoryview


class Destination:
    """Host memory for one version, whole (`ranges` None: a piece a parameter) or in parts (a piece a range)."""

    def __init__(self) -> None:
        self._ranges: tuple[Range, ...] | None = None
        self._pieces: dict[str | int, _Piece] = {}
        self._old: dict[str | int, _Piece] = {}
        self._came: dict[str | int, list[tuple[int, int, str]]] = {}

    def begin(self, ranges: tuple[Range, ...] | None) -> None:
        """Forgets what was pulled before; its memory is taken again where it fits."""
        self._ranges = ranges
        self._old |= self._pieces
        self._pieces = {}
        self._came = {}

    def room(self, offer: Offer, source: str) -> list[memoryview]:
        """The memory for each segment of `offer`, in order. WeightsError where it does not fit what others offered."""
        listed = {param.name: param for param in offer.params}
        keys: list[str | int]
        if self._ranges is None:
            keys = list(listed)
            for name, param in listed.items():
                self._piece(name, param, 0, math.prod(param.shape))
        else:
            keys = list(range(len(self._ranges)))
            for i, want in enumerate(self._ranges):
                if want.name in listed:
                    self._piece(i, listed[want.name], want.start, want.stop)
        views: list[memoryview] = []
        for target, start, stop in ((s.target, s.start, s.stop) for s in offer.segments):
            piece = self._pieces.get(keys[target]) if 0 <= target < len(keys) else None
            if piece is None or not piece.first <= start < stop <= piece.last:
                raise WeightsError(f"segment {start} to {stop} of target {target} lies outside of what was asked for")
            size = piece.flat.element_size()
            views.append(piece.memory[(start - piece.first) * size : (stop - piece.first) * size])
            self._came.setdefault(keys[target], []).append((start, stop, source))
        return views

    def _piece(self, key: str | int, param: Parameter, first: int, last: int) -> None:
        known = self._pieces.get(key)
        if known is not None:
            if known.param != param:
                raise WeightsError(f"{param.name}: this source has {param}, another one {known.param}")
            return
        old = self._old.pop(key, None)
        if old is None or (old.param.dtype, len(old.flat)) != (param.dtype, last - first):
            if param.dtype not in DTYPES:
                raise WeightsError(f"{param.name} has type {param.dtype}; expected one of {', '.join(DTYPES)}")
            flat = torch.empty(last - first, dtype=DTYPES[param.dtype])
            memory = flat.view(torch.uint8).numpy().data
        else:
            flat, memory = old.flat, old.memory
        self._pieces[key] = _Piece(param, first, last, flat, memory)

    def check(self) -> None:
        """WeightsError unless every element of every piece came exactly once."""
        self._old = {}
        if self._ranges is not None:
            for i, want in enumerate(self._ranges):
                if i not in self._pieces:
                    raise WeightsError(f"{want.name}: no source publishes it")
        for key, piece in self._pieces.items():
            at, before = piece.first, "the start"
            for start, stop, source in sorted(self._came.get(key, ())):
                if start != at:
                    kind = "missing" if start > at else "given twice"
                    low, high = sorted((at, start))
                    raise WeightsError(
                        f"{piece.param.name}: elements {low} to {high} {kind}, between {before} and {source}"
                    )
                at, before = stop, source
            if at != piece.last:
                raise WeightsError(f"{piece.param.name}: elements {at} to {piece.last} missing, after {before}")

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters in their logical shapes."""
        return {piece.param.name: piece.flat.view(piece.param.shape) for piece in self._pieces.values()}

    def parts(self) -> list[torch.Tensor]:
        """The pieces in the order of the ranges."""
        return [self._pieces[i].flat for i in range(len(self._pieces))]
