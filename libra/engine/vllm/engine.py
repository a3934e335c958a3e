"""One rank of a vLLM engine: turns in, token ids out, the same calls as `libra.engine.engine.Engine`.

    submit, cut, install come between two `step`s, on all ranks of an engine alike and in the same order (`lockstep`)

Invariants: a token is stamped with the weights that sampled it; what a turn has sampled survives a cut, a pre-emption and an
install; a cached prefix is only ever used by turns of the weights that computed it.

How prefixes keep to their weights: a request's blocks are hashed with the salt of the version at which it was handed in.
An installation hands in anew every turn that has not sampled yet, so it begins with the new weights; one that has sampled keeps
its keys and values (`kv_on_update = keep`), or is handed in anew with what it has (`recompute`). What it leaves behind carries
the old salt, which nobody asks for again; vLLM evicts it when it needs the room.

A request's noise is a stream of its own. Its seed comes from (run seed, prompt, sample, attempt, position), the position
being where in its context this stretch begins: trajectory, turn and segment, in other words.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from vllm import LLMEngine, SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from libra.engine.noise import seed_of
from libra.engine.turns import check_turn
from libra.engine.vllm import loading
from libra.engine.vllm.device import block_tokens
from libra.engine.vllm.gauges import Gauges
from libra.engine.vllm.settings import VllmShape, engine_args
from libra.errors import NonFiniteError, RoleError, WeightsError
from libra.wire.messages import EngineStats, Turn, TurnDone

WARM_UP_TOKENS = 8


class _Live:
    """A turn that is here."""

    __slots__ = ("logprobs", "ordinal", "request", "tokens", "turn", "versions")

    def __init__(self, turn: Turn, ordinal: int) -> None:
        self.turn = turn
        self.ordinal = ordinal
        """Among the turns of equal priority the smaller goes first. No clock: all ranks must order alike."""
        self.request = ""
        """Under which vLLM knows it now."""
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []


class VllmEngine:
    """Rank `index` of `shape.tp`. The default process group holds exactly the ranks of this engine.

    `directory` holds the model's transformers configuration; it is read here and never again.
    """

    def __init__(
        self,
        shape: VllmShape,
        shapes: dict[str, tuple[int, ...]],
        directory: str,
        index: int,
        device: torch.device,
    ) -> None:
        loading.register()
        self.version = -1
        self.sampled: list[int] = []
        """Tokens of the last step, in vLLM's order: what all ranks must agree upon."""
        self._shape = shape
        self._shapes = shapes
        self.ranges = loading.ranges(shapes, index, shape.tp)
        """What this rank pulls of a publication."""
        self._gauges = Gauges()
        self._engine: Any = LLMEngine.from_engine_args(
            engine_args(shape, directory, device), stat_loggers=[lambda *_: self._gauges]
        )
        _drop_queue()
        self._check_room(device)
        self._turns: dict[int, _Live] = {}
        self._requests: dict[str, _Live] = {}
        self._cut: dict[int, None] = {}
        self._submitted = self._handed_in = self._decode_steps = self._sampled_tokens = 0
        self._warm_up()

    def _check_room(self, device: torch.device) -> None:
        got, expected = self._engine.vllm_config.cache_config.num_gpu_blocks, self._shape.blocks(device)
        if got is None or got < expected:
            raise RoleError(
                f"vLLM made {got} KV blocks of {block_tokens(device)} tokens, expected {expected}: this version lays out its"
                " cache in another way than libra.engine.vllm.settings computes"
            )
        self._kv_tokens = got * block_tokens(device)

    def _warm_up(self) -> None:
        """First steps are slow (seconds). The weights are dummies; so are all counts, which start again after this."""
        length = min(WARM_UP_TOKENS, self._shape.max_context_tokens - 2)
        params = SamplingParams(temperature=1.0, seed=0, max_tokens=2, ignore_eos=True, logprobs=0, detokenize=False)
        self._engine.add_request("warm-up", tokens_input([0] * length), params)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._gauges.__init__()

    @property
    def busy(self) -> bool:
        """Whether another step has anything to do or to report."""
        return bool(self._turns)

    def stats(self) -> EngineStats:
        gauges = self._gauges
        return EngineStats(
            version=self.version,
            running=gauges.running if self._turns else 0,
            waiting=gauges.waiting if self._turns else 0,
            kv_tokens=round(gauges.kv_share * self._kv_tokens) if self._turns else 0,
            decode_steps=self._decode_steps,
            sampled_tokens=self._sampled_tokens,
            prefilled_tokens=gauges.queried_tokens - gauges.hit_tokens,
            reused_tokens=gauges.hit_tokens,
            preemptions=gauges.preemptions,
        )

    def install(self, version: int, parts: Sequence[torch.Tensor]) -> None:
        """Sample with these weights from the next step on. `parts` are those of `ranges`, in order.

        WeightsError, and nothing has changed, if they do not fit `ranges`.
        """
        got, expected = [len(part) for part in parts], [r.stop - r.start for r in self.ranges]
        if got != expected:
            raise WeightsError(
                f"got {len(got)} parts of {sum(got)} elements, expected {len(expected)} of {sum(expected)}"
            )
        loading.install(self._engine, loading.whole(self._shapes, self.ranges, parts))
        self.version = version
        for live in self._turns.values():
            if not live.tokens or self._shape.vllm.kv_on_update == "recompute":
                self._engine.abort_request([live.request])
                del self._requests[live.request]
                self._hand_in(live)

    def submit(self, turn: Turn) -> None:
        """Queue a turn. RoleError if it can never run here."""
        what = check_turn(turn, self.version, self._turns, self._shape.vocab_size)
        room = len(turn.tokens) + turn.max_new_tokens
        for limit, name in (
            (self._shape.max_context_tokens, "the longest context (lower the environment's, or raise it)"),
            (self._shape.kv_tokens, "the engine's KV room (raise the bucket's kv_tokens)"),
        ):
            if room > limit:
                raise RoleError(
                    f"{what}: {len(turn.tokens)} context tokens and max_new_tokens = {turn.max_new_tokens} make"
                    f" {room}, more than {limit}, {name}"
                )
        self._submitted += 1
        live = self._turns[turn.traj] = _Live(turn, self._submitted)
        self._hand_in(live)

    def _hand_in(self, live: _Live) -> None:
        """To vLLM, as a request of the weights of now; with what the turn has sampled already."""
        turn, context = live.turn, live.turn.tokens + live.tokens
        self._handed_in += 1
        params = SamplingParams(
            temperature=self._shape.temperature,
            seed=seed_of(turn.noise, len(context)),
            max_tokens=turn.max_new_tokens - len(live.tokens),
            stop_token_ids=sorted(self._shape.stop_ids),
            logprobs=0,
            detokenize=False,
            skip_clone=True,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = tokens_input(context, cache_salt=str(self.version))
        live.request = str(self._handed_in)
        self._engine.add_request(live.request, prompt, params, arrival_time=float(live.ordinal), priority=turn.priority)
        self._requests[live.request] = live

    def cut(self, traj: int) -> None:
        """End a turn at this token boundary; the next step reports it. A turn that is no longer here is no error."""
        if traj in self._turns:
            self._cut[traj] = None

    def forget(self, trajs: Iterable[int]) -> None:
        """Nothing to do: vLLM keeps no prefix for anybody, and evicts the one that was not used for longest."""

    def step(self) -> list[TurnDone]:
        """One token for all running turns; the turns that ended (or were cut).

        NonFiniteError if the weights give no finite probabilities.
        """
        done: list[TurnDone] = []
        for traj in self._cut:
            live = self._turns[traj]
            self._engine.abort_request([live.request])
            done.append(self._end(live, "cut"))
        self._cut.clear()
        self.sampled = []
        if not self._turns:
            return done
        self._decode_steps += 1
        for output in self._engine.step():
            live = self._requests.get(output.request_id)
            if live is not None:
                done += self._take(live, output.outputs[0])
        self._sampled_tokens += len(self.sampled)
        return done

    def _take(self, live: _Live, output: Any) -> list[TurnDone]:
        for token, choices in zip(output.token_ids, output.logprobs or (), strict=True):
            logprob = choices[token].logprob
            if not math.isfinite(logprob):
                raise NonFiniteError(
                    f"weights of version {self.version} give NaN or infinite logits in the turn of trajectory"
                    f" {live.turn.traj}; expected finite ones: look at the trainer's last step"
                )
            self.sampled.append(token)
            live.tokens.append(token)
            live.logprobs.append(logprob)
            live.versions.append(self.version)
        if output.finish_reason is None:
            return []
        if output.finish_reason not in ("stop", "length"):
            raise RoleError(
                f"vLLM ended the turn of trajectory {live.turn.traj} with '{output.finish_reason}', expected 'stop' or 'length'"
            )
        return [self._end(live, output.finish_reason)]

    def _end(self, live: _Live, finish: Literal["stop", "length", "cut"]) -> TurnDone:
        del self._turns[live.turn.traj], self._requests[live.request]
        turn = live.turn
        return TurnDone(turn.cmd, turn.traj, live.tokens, live.logprobs, live.versions, finish)


def _drop_queue() -> None:
    """Give back the message queue that vLLM makes for a group of several ranks; with the external launcher nobody sends by it.

    It is 25 MB of shared memory under a name. A role's session is killed as soon as the role has ended, and with it the process
    that Python keeps to take such names away: each end of an engine would leave it behind.
    """
    from vllm.distributed.parallel_state import get_tp_group

    get_tp_group().mq_broadcaster = None
