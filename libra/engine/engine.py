"""The embedded `torch` engine: continuous batching of turns over a compact decoder, one token a step.

    submit --> waiting (FIFO) --room for context and all it may sample--> running --stop, length or cut--> TurnDone
                                                                             ^ one token a row each step

Called by the rollout role from one thread: `submit`, `cut`, `forget` and `install` come between two `step`s. The queue
of waiting turns is bounded by the controller, which never has two turns of one trajectory out.

Invariants: under the same weights a turn's tokens depend on its context and noise key alone, whatever else runs, moves
or is cut (up to floating point); KV room is never exceeded; an idle prefix is always of the installed weights. A turn
that runs through an install keeps its keys and values (kv_on_update = keep) but leaves no prefix behind.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from libra.config.schema import ModelConfig
from libra.engine.attention import DecodeAttention
from libra.engine.kv import Row, RowCache
from libra.engine.model import Decoder
from libra.engine.noise import uniforms
from libra.engine.prefill import Run, fill
from libra.engine.sampling import draw
from libra.engine.turns import check_turn
from libra.errors import NonFiniteError, RoleError
from libra.wire.messages import EngineStats, Turn, TurnDone

PREFILL_TOKENS = 1024
"""Once this many new context tokens are admitted in a step, further turns wait for the next: so running turns, cuts and
installs never wait for more than this and one turn's context."""
_CPU = torch.device("cpu")


class _Live:
    """A turn that waits or runs."""

    __slots__ = ("forgotten", "logprobs", "mixed", "row", "tokens", "turn", "versions")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.row: Row | None = None
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.mixed = False
        """Its keys and values come from more than one set of weights."""
        self.forgotten = False

    @property
    def room_tokens(self) -> int:
        return len(self.turn.tokens) + self.turn.max_new_tokens

    @property
    def row_index(self) -> int:
        assert self.row is not None, "only running turns have a row"
        return self.row.index


class Engine:
    """Generates turns. `version` is the installed policy version, -1 before the first install.

    `max_batch` turns decode at a time in `kv_tokens` of KV room; a turn has at most `max_context_tokens`, what it may
    sample included. `stop_ids` end a turn and belong to it.
    """

    def __init__(
        self,
        model: ModelConfig,
        vocab_size: int,
        stop_ids: frozenset[int],
        max_batch: int,
        kv_tokens: int,
        temperature: float,
        max_context_tokens: int,
        device: torch.device = _CPU,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.version = -1
        self._vocab_size = vocab_size
        self._stop_ids = stop_ids
        self._max_batch = max_batch
        self._temperature = temperature
        self._max_context_tokens = max_context_tokens
        self._device = device
        self._model = Decoder(model, vocab_size, max_context_tokens, device, dtype)
        self._cache = RowCache(model.layers, model.kv_heads, self._model.head_dim, kv_tokens, device, dtype)
        self._turns: dict[int, _Live] = {}
        self._waiting: deque[_Live] = deque()
        self._running: list[_Live] = []
        self._rows: list[int] = []
        """Row numbers of the running turns, ascending; valid from one packing to the next."""
        self._cut: dict[int, None] = {}
        self._changed = False
        """Whether turns came or went since rows were last packed."""
        self._decode_steps = self._sampled_tokens = self._prefilled_tokens = self._reused_tokens = 0

    @property
    def busy(self) -> bool:
        """Whether another step has anything to do or to report."""
        return bool(self._turns)

    def stats(self) -> EngineStats:
        return EngineStats(
            version=self.version,
            running=len(self._running),
            waiting=len(self._waiting),
            kv_tokens=self._cache.used_tokens,
            decode_steps=self._decode_steps,
            sampled_tokens=self._sampled_tokens,
            prefilled_tokens=self._prefilled_tokens,
            reused_tokens=self._reused_tokens,
        )

    @torch.inference_mode()
    def install(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Sample with `weights` from the next step on. WeightsError, and the old ones stay, if they do not fit."""
        self._model.install(weights)
        self.version = version
        self._cache.drop_prefixes()
        for live in self._running:
            live.mixed = True

    def submit(self, turn: Turn) -> None:
        """Queue a turn. RoleError if it can never run here."""
        what = check_turn(turn, self.version, self._turns, self._vocab_size)
        live = _Live(turn)
        for limit, name in (
            (self._max_context_tokens, "the longest context (raise model.max_positions or lower the environment's)"),
            (self._cache.kv_tokens, "the engine's KV room (raise the bucket's kv_tokens)"),
        ):
            if live.room_tokens > limit:
                raise RoleError(
                    f"{what}: {len(turn.tokens)} context tokens and max_new_tokens = {turn.max_new_tokens} make"
                    f" {live.room_tokens}, more than {limit}, {name}"
                )
        self._turns[turn.traj] = live
        self._waiting.append(live)

    def cut(self, traj: int) -> None:
        """End a turn at this token boundary; the next step reports it. A turn that is no longer here is no error."""
        if traj in self._turns:
            self._cut[traj] = None

    def forget(self, trajs: Iterable[int]) -> None:
        """Free the prefixes of `trajs`; one whose turn still runs leaves none when it ends."""
        for traj in trajs:
            self._cache.forget(traj)
            if traj in self._turns:
                self._turns[traj].forgotten = True

    @torch.inference_mode()
    def step(self) -> list[TurnDone]:
        """Admit waiting turns that fit, decode one token for all running ones; the turns that ended (or were cut).

        NonFiniteError if the weights give no finite probabilities.
        """
        done = [self._end(self._turns[traj], "cut") for traj in self._cut]
        if self._cut:
            self._waiting = deque(live for live in self._waiting if live.turn.traj not in self._cut)
            self._running = [live for live in self._running if live.turn.traj not in self._cut]
            self._cut.clear()
            self._changed = True
        self._admit()
        if self._changed:
            self._cache.pack()
            self._running.sort(key=lambda live: live.row_index)
            self._rows = [live.row_index for live in self._running]
            self._changed = False
        if self._running:
            ended = self._decode()
            if ended:
                done += ended
                self._running = [live for live in self._running if live.row is not None]
                self._changed = True
        return done

    def _admit(self) -> None:
        """Move waiting turns, first come first served, into rows and store all of their contexts but the last token."""
        runs: list[Run] = []
        new_tokens = 0
        while self._waiting and len(self._running) < self._max_batch and new_tokens < PREFILL_TOKENS:
            live = self._waiting[0]
            context = live.turn.tokens
            claim = self._cache.claim(live.turn.traj, context, live.room_tokens)
            if claim is None:
                break
            live.row, reused = claim
            self._waiting.popleft()
            self._running.append(live)
            self._reused_tokens += reused
            new_tokens += len(context) - reused
            self._changed = True
            if reused < len(context) - 1:
                runs.append(Run(live.row, reused, context[reused:-1]))
        copied = fill(self._model, self._cache, runs)
        self._reused_tokens += copied
        self._prefilled_tokens += new_tokens - copied

    def _decode(self) -> list[TurnDone]:
        """One token for every running turn."""
        running = self._running
        ids = [(live.tokens or live.turn.tokens)[-1] for live in running]
        lengths = [len(live.turn.tokens) + len(live.tokens) for live in running]
        feed = torch.tensor([ids, lengths, self._rows], device=self._device)
        feed[1] -= 1
        attention = DecodeAttention(feed[2], feed[1], self._rows[-1] + 1, max(lengths), self._model.dtype)
        logits = self._model.logits(feed[0], feed[1], self._cache.layers, attention)
        noise = uniforms((live.turn.noise, length) for live, length in zip(running, lengths, strict=True))
        drawn = draw(logits, torch.from_numpy(noise).to(self._device), self._temperature)
        tokens, logprobs = drawn[0].tolist(), drawn[1].tolist()
        self._check(logprobs)
        self._decode_steps += 1
        self._sampled_tokens += len(running)
        done: list[TurnDone] = []
        for live, token, logprob in zip(running, tokens, logprobs, strict=True):
            live.tokens.append(token)
            live.logprobs.append(logprob)
            live.versions.append(self.version)
            if token in self._stop_ids:
                done.append(self._end(live, "stop"))
            elif len(live.tokens) == live.turn.max_new_tokens:
                done.append(self._end(live, "length"))
        return done

    def _check(self, logprobs: list[float]) -> None:
        if all(map(math.isfinite, logprobs)):
            return
        bad = [live.turn.traj for live, p in zip(self._running, logprobs, strict=True) if not math.isfinite(p)]
        raise NonFiniteError(
            f"weights of version {self.version} give NaN or infinite logits in {len(bad)} of {len(self._running)} turns"
            f" (trajectories {bad[:5]}); expected finite ones: look at the trainer's last step"
        )

    def _end(self, live: _Live, finish: Literal["stop", "length", "cut"]) -> TurnDone:
        turn = live.turn
        del self._turns[turn.traj]
        if live.row is not None:
            if live.mixed or live.forgotten:
                self._cache.free(live.row)
            else:
                # The last sampled token has not been fed: its keys are not in the cache.
                self._cache.keep(turn.traj, live.row, turn.tokens + live.tokens[:-1])
            live.row = None
        elif live.forgotten:
            self._cache.forget(turn.traj)
        return TurnDone(
            cmd=turn.cmd,
            traj=turn.traj,
            tokens=live.tokens,
            logprobs=live.logprobs,
            versions=live.versions,
            finish=finish,
        )
