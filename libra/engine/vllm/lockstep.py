"""What the ranks of one engine tell each other before each step: the leader's tick, and votes.

    leader: tell(tick) ──────> followers: hear() -> tick        a broadcast; of one rank: nothing
    all:    vote(mine) ──────> everybody's, in order of rank     only when the tick asks for it

A group of its own, over the same store: control stays off vLLM's groups, and works while a device group is hung. Every rank of
an engine schedules for itself; that is sound only while all of them sample the same tokens, so a tick carries a digest of
what its teller has sampled so far, and a rank that sampled something else ends with the reason.
"""
# pyright: reportAttributeAccessIssue=false

import zlib
from collections.abc import Iterable
from datetime import timedelta

import msgspec
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store, Work  # pyright: ignore[reportPrivateImportUsage]

from libra.errors import PeerError, RoleError
from libra.wire.messages import Turn

HEAD_BYTES = 4096
"""Goes out in one broadcast; only what is longer takes a second one."""
_LENGTH_BYTES = 4


class Tick(msgspec.Struct, frozen=True, array_like=True):
    """What all ranks do before their next step, in this order: vote on weights, take turns, cut, then step."""

    turns: list[Turn] = []
    cuts: list[int] = []
    vote: bool = False
    digest: int = 0


class Lockstep:
    """Rank `index` of `size`. A wait for another rank ends after `timeout_s`, or when its process does, in PeerError."""

    def __init__(self, store: Store, index: int, size: int, timeout_s: float) -> None:
        self.index, self.size = index, size
        self._digest = 0
        self._head = torch.zeros(HEAD_BYTES, dtype=torch.uint8)
        self._decoder = msgspec.msgpack.Decoder(Tick)
        self._encoder = msgspec.msgpack.Encoder()
        self._group: ProcessGroupGloo | None = None
        if size > 1:
            timeout = timedelta(seconds=timeout_s)
            self._group = ProcessGroupGloo(PrefixStore("lockstep", store), index, size, timeout)

    @property
    def leads(self) -> bool:
        return self.index == 0

    def sampled(self, tokens: Iterable[int]) -> None:
        """These tokens were sampled, on this rank's own account."""
        for token in tokens:
            self._digest = zlib.crc32(token.to_bytes(4, "little"), self._digest)

    def tell(self, turns: list[Turn], cuts: list[int], vote: bool) -> Tick:
        """The leader's next tick, to all."""
        tick = Tick(turns, cuts, vote, self._digest)
        if self._group is not None:
            data = self._encoder.encode(tick)
            framed = len(data).to_bytes(_LENGTH_BYTES, "little") + data
            first, rest = framed[:HEAD_BYTES], framed[HEAD_BYTES:]
            self._head[: len(first)] = torch.frombuffer(bytearray(first), dtype=torch.uint8)
            self._broadcast(self._head)
            if rest:
                self._broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8))
        return tick

    def hear(self) -> Tick:
        """A follower's wait for the leader's next tick."""
        self._broadcast(self._head)
        head = self._head.numpy().tobytes()
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        data = head[_LENGTH_BYTES : _LENGTH_BYTES + length]
        if len(data) < length:
            rest = torch.empty(length - len(data), dtype=torch.uint8)
            self._broadcast(rest)
            data += rest.numpy().tobytes()
        tick = self._decoder.decode(data)
        if tick.digest != self._digest:
            raise RoleError(
                f"rank {self.index} of this engine has sampled other tokens than its leader (digest {self._digest:08x},"
                f" expected {tick.digest:08x}): its ranks differ in weights, arithmetic or order of requests"
            )
        return tick

    def vote(self, mine: int) -> list[int]:
        """What every rank says, in order of rank."""
        if self._group is None:
            return [mine]
        votes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._wait(self._group.allgather(votes, torch.tensor([mine])))
        return [int(v.item()) for v in votes]

    def _broadcast(self, tensor: torch.Tensor) -> None:
        assert self._group is not None
        self._wait(self._group.broadcast(tensor, 0))

    def _wait(self, work: Work) -> None:
        try:
            work.wait()
        except RuntimeError as e:
            raise PeerError(f"rank {self.index} of {self.size} lost the others between two steps: {e}") from e
