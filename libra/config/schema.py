"""The configuration of a run: one frozen Struct a table of the TOML file.

Unknown keys are refused everywhere. Every quantity names its unit (`_s`, `_tokens`, `_bytes`). Values are range-checked
by the types here; relations between values (`max_lag` against `mode`, heads against TP) are in `preflight`.
"""

from typing import Annotated, Literal

from msgspec import Meta, field, structs

from libra.config.parts import HardwareConfig, ModelShape
from libra.config.types import Fraction, Mode, Name, NatInt, NonNegFloat, PosFloat, PosInt, Table
from libra.config.worlds import CalculatorConfig, EnvConfig, LiveEnvConfig, RewardConfig, WorkloadConfig
from libra.errors import ConfigError

NO_TASKS = (
    'env.name: got "workload", expected "calculator" or "lookup": a workload has lengths but no tasks, so only emulated '
    'engines can run it; set engine = "emulated" in every bucket, or use libra simulate'
)


class RunConfig(Table, frozen=True):
    """What the run is called and how far it goes."""

    name: Name = "run"
    seed: NatInt = 0
    steps: PosInt = 100
    """Batches to consume; skipped ones count."""
    mode: Mode = "async"
    directory: str = "runs"
    """Where run directories are made; relative to the working directory."""
    device: Literal["cpu", "accelerator"] = "cpu"
    """What ranks compute on. accelerator: what torch finds on their host (CUDA, Ascend, ...), one a rank. Ranks of one process
    group cannot share one, a core rank and an engine can."""


class ModelConfig(Table, frozen=True):
    """A decoder of the Llama family, as a transformers configuration: a small one of these sizes, or a pretrained one."""

    pretrained: str = ""
    """A directory in transformers' format, a model that `libra fetch` keeps, or ORG/NAME in the hub's cache. All other keys
    then come from its config.json, and the environment speaks in its chat template. Empty: fresh weights of these sizes."""
    architecture: Literal["qwen2", "llama"] = "qwen2"
    hidden: PosInt = 96
    layers: PosInt = 2
    heads: PosInt = 4
    kv_heads: PosInt = 4
    ffn: PosInt = 192
    vocabulary: NatInt = 0
    """Rows of the embedding; 0: as many as the environment has words."""
    tied_embeddings: bool = True
    initializer_range: PosFloat = 0.06
    rms_norm_eps: PosFloat = 1e-6
    rope_theta: PosFloat = 10_000.0
    max_positions: PosInt = 512


class AllocationConfig(Table, frozen=True):
    """Which device ranks train when the run begins. The others serve the buckets, in rank order, before those that lend."""

    trainer: PosInt = 2
    """Core ranks: the FSDP2 mesh, fixed for the run."""
    replica: PosInt = 1
    """Ranks that hold the model for training: a gradient replica. Ranks move in whole replicas and whole engines."""
    gradient: NatInt = 0
    """Ranks that lend gradients from the start; a multiple of `replica`."""


class ElasticConfig(Table, frozen=True):
    """When ranks move between rollout and training by themselves. What a move is stands in `libra.core.handover`."""

    rule: Literal["off", "balance"] = "off"
    """off: ranks move on a person's order only. balance: see `libra.core.balance`."""
    prepare_first: bool = False
    """The new role starts while the old one still works: both must fit on the device together."""
    margin: Fraction = 0.05
    """What the slower stage must gain by a move, as a share of its seconds."""
    patience: PosInt = 2
    """Batches in a row that must ask for the same move."""
    cooldown: PosInt = 3
    """Batches after a move before the next; doubled after a move that did not pay, which is taken back."""
    explore: NatInt = 0
    """Where nothing promises to pay for so many batches, a move is tried, and taken back if it does not pay; 0: never."""
    hold_s: NonNegFloat = 120.0
    """After a person's order nothing moves by itself for so long."""


class BucketConfig(Table, frozen=True):
    """Engines of one shape."""

    name: Name = "main"
    engine: Literal["torch", "vllm", "emulated"] = "torch"
    """torch: a compact decoder on one device. vllm: any TP degree that divides the heads, see `[vllm]` and docs/engines.md.
    emulated: no device at all, it sleeps as long as the cost model says."""
    tp: PosInt = 1
    engines: NatInt = 1
    """When the run begins; ranks may move later. 0: a shape that no engine has at first."""
    max_batch: PosInt = 128
    """Turns that decode at the same time on one engine."""
    kv_tokens: NatInt = 65_536
    """KV room of one engine, in tokens. 0, for emulated engines: all that the cost model finds beside the weights."""


class VllmConfig(Table, frozen=True):
    """How `vllm` engines are set up, those of all buckets alike. Why, and what is fixed, stands in docs/engines.md."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and cache in the engine. Only float32 agrees with the trainer to 1e-3 in log-probability."""
    enforce_eager: bool = True
    """False: compiled; faster at large batches, seconds to minutes slower to start."""
    prefill_tokens: PosInt = 2048
    """Tokens of one step at most, contexts and sampled ones together."""
    kv_on_update: Literal["keep", "recompute"] = "keep"
    """What becomes of the keys and values of running turns when new weights are installed."""


class CausalityConfig(Table, frozen=True):
    """How the tree of residual distributions remembers. What it is stands in `libra.core.causality`."""

    decay: Annotated[float, Meta(gt=0, le=1)] = 0.9
    """What an observation still counts after one more policy version; 1 never forgets. (The paper's policies take 1.)"""
    pseudo_count: PosFloat = 4.0
    """Visits at which a node speaks for half of what it is asked."""
    max_nodes: Annotated[int, Meta(ge=16)] = 20_000
    """Beyond, the least useful go; 0.7 KB a node after one visit, 12 KB at most."""
    save_steps: PosInt = 20
    """The run's directory gets the tree after each so many batches, and at the end."""


class SchedulerConfig(Table, frozen=True):
    """Who decides which engine takes a turn. The rules stand in docs/scheduling.md."""

    policy: Literal[
        "least_loaded",
        "causal",
        "cmlfq",
        "expected_cost",
        "sticky",
        "length_aware",
        "trajectory_priority",
        "oracle",
    ] = "least_loaded"
    """`oracle` knows the future: only a simulation can run it."""
    thresholds_tokens: Annotated[tuple[PosInt, ...], Meta(min_length=1)] = (5_000, 10_000, 20_000)
    """Lengths, inclusive, between the buckets in order of TP: of the residual in `cmlfq`, of the context in `length_aware`."""
    small_tokens: NatInt = 500
    medium_tokens: PosInt = 5_000
    """Upper ends, inclusive, of the two smaller payload classes of a tool return."""
    reserve_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """KV room of a turn: its context and this share of its budget. 1 never overflows; less suits engines that pre-empt."""
    max_wait_s: PosFloat = 300.0
    """A turn waits so long at most for an engine or bucket of the policy's choice; then any engine with room takes it."""
    overtake_s: NonNegFloat = 60.0
    """In the queue of its batch a long trajectory's turn passes only those that came at most so much earlier."""
    review_s: PosFloat = 10.0
    """A turn that runs for so long is looked at again, and then as often: `causal` may cut it, to resume it elsewhere."""
    max_cuts: NatInt = 8
    """A trajectory is cut so often at most by its policy; 0: never."""
    kv_move: bool = False
    """Engines can fetch a prefix from another engine instead of computing it again."""
    family: str = ""
    """Under what name trajectories teach the tree beside their prompt's own; empty: the environment's name."""
    tree: CausalityConfig = CausalityConfig()
    tree_from: str = ""
    """Start from what an earlier run has learnt: its name, its directory, or a `causality.tree`. Empty: from nothing."""


class CostConfig(Table, frozen=True):
    """What the cost model computes with. In a file each is the name of a part in `configs/`, or a table of its own."""

    hardware: HardwareConfig
    model: ModelShape


class RolloutConfig(Table, frozen=True):
    """How trajectories are sampled and admitted."""

    groups_per_batch: PosInt = 20
    samples_per_group: Annotated[int, Meta(ge=2)] = 8
    temperature: PosFloat = 1.0
    max_lag: NatInt | None = None
    """Batches that admission may run ahead: L. None takes the mode's: async 2, one-step-off 1, sync 0."""
    overdue: Literal["wait", "drop_group"] = "wait"
    retries: NatInt = 1
    """Fresh attempts after a trajectory ends as `failed`, before its group is dropped."""


class TrainerConfig(Table, frozen=True):
    """The optimiser and the loss. Formulas and sources stand in `libra.train.loss`."""

    lr: PosFloat = 5e-4
    lr_warmup_steps: NatInt = 25
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    eps: PosFloat = 1e-8
    weight_decay: NonNegFloat = 0.0
    max_grad_norm: PosFloat = 1.0
    clip_low: Fraction = 0.2
    clip_high: NonNegFloat = 0.28
    importance_cap: PosFloat = 2.0
    """Truncation of the importance weight between the sampling policy and the proximal one."""
    negative_cap: Annotated[float, Meta(gt=1)] = 3.0
    """Upper bound of the ratio where the advantage is negative (dual clip)."""
    advantage: Literal["group_std", "group_mean"] = "group_std"
    micro_batch_tokens: PosInt = 2048
    """Tokens in one micro-batch at most (a single longer trajectory still goes alone). Rows are packed, not padded."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Type of the forward and backward pass. Parameters, their sums of gradients and the optimiser stay float32 in any case."""
    recompute: bool = False
    """Each layer keeps only its input and computes the rest again in the backward pass: a third more work, far less memory."""
    threads: PosInt = 1
    """Compute threads of each role process."""


class WarmStartConfig(Table, frozen=True):
    """Supervised steps on scripted demonstrations before the first rollout; cached by content."""

    demonstrations: PosInt = 16_000
    steps: NatInt = 1000
    batch: PosInt = 32
    lr: PosFloat = 3e-3
    give_up: Fraction = 0.7
    """Share of demonstrations that answer early with what they have: what RL then has to unlearn."""
    malformed: Fraction = 0.03
    """Share of demonstrated calls that are malformed and retried."""
    cache: str = ""
    """Directory of the cache; empty: the user's cache directory."""


class EvalConfig(Table, frozen=True):
    """Held-out tasks, sampled at T = 1 like the training ones."""

    tasks: NatInt = 200
    at_start: bool = True
    at_end: bool = True
    every: NatInt = 0
    """Also during the run, after each so many batches, in places that training leaves empty; 0: not."""
    at_once: PosInt = 32
    """Tasks of such an evaluation that are under way at the same time."""
    deadline_s: PosFloat = 600.0
    """Such an evaluation ends after this; tasks that are then under way are given up, and counted."""


class CheckpointConfig(Table, frozen=True):
    """What a run can go on from after its end: docs/long-runs.md."""

    every: NatInt = 20
    """Batches between two checkpoints; one more when the run ends in good order, and where an evaluation begins. 0: none."""
    keep: PosInt = 2
    """The newest so many are kept, and the one with the best held-out reward."""
    min_free_bytes: NatInt = 1 << 28
    """What a checkpoint must leave free on its disk; else it is not written, with a warning."""


class TranscriptsConfig(Table, frozen=True):
    """Trajectories on disk, as token ids, for `libra show`."""

    keep: Literal["all", "sample", "none"] = "all"
    sample_every: PosInt = 16
    """`sample`: of each so many prompts one, with all of its samples."""
    max_bytes: Annotated[int, Meta(ge=1 << 16)] = 1 << 27
    """Of all files together; the oldest go."""


class DeadlineConfig(Table, frozen=True):
    """How long each kind of wait may take before it becomes an error or an event."""

    find_controller_s: PosFloat = 60.0
    role_start_s: PosFloat = 90.0
    group_s: PosFloat = 60.0
    """Forming a process group; afterwards the time-out of its collectives."""
    engine_start_s: PosFloat = 600.0
    """Making a vLLM engine, its process group included: memory, compilation, graphs, first steps."""
    warm_start_s: PosFloat = 600.0
    heartbeat_s: PosFloat = 0.5
    lost_s: PosFloat = 10.0
    """A supervisor that is silent for this long is lost."""
    lease_s: PosFloat = 6.0
    """An engine or gradient role ends by itself so long after its supervisor sent the last heartbeat that was answered."""
    stalled_s: PosFloat = 60.0
    """A role that has orders but shows no progress for this long is ended and counted as failed; not while it forms a group."""
    weights_s: PosFloat = 20.0
    """One engine's pull and installation of one version."""
    drain_s: PosFloat = 10.0
    """A unit that leaves: its running turns are cut, or its share is sent, within this; else they are taken from it."""
    share_s: PosFloat = 10.0
    """With its own rounds done the core waits so long at most for gradient shares; then it computes the rest itself."""
    checkpoint_s: PosFloat = 300.0
    """Writing, or reading, one checkpoint; the run waits for it only when it ends, or begins."""
    stop_s: PosFloat = 20.0
    """Orderly end of all roles; then they are killed."""
    role_restarts: NatInt = 3
    """Restarts of one rank's engine role before the rank is given up."""


class TruthConfig(Table, frozen=True):
    """How machines that only pretend differ from what the cost model says: known to them alone. The core has to learn it.

    Formulas stand in `libra.workload.truth`. The defaults change nothing.
    """

    seed: NatInt = 0
    slowdown: PosFloat = 1.0
    """All engines' seconds, times this."""
    engine_spread: NonNegFloat = 0.0
    """Standard deviation, among engines, of the logarithm of their seconds."""
    step_noise: NonNegFloat = 0.0
    """Standard deviation, over time, of the logarithm of an engine's seconds."""
    noise_s: PosFloat = 5.0
    """For how long the noise of an engine's seconds stays as it is."""
    slow_engine: Annotated[int, Meta(ge=-1)] = -1
    """One engine that is slower by `slow_factor`; -1: none."""
    slow_factor: Annotated[float, Meta(ge=1)] = 3.0
    tool_noise: NonNegFloat = 0.0
    """Standard deviation of the logarithm of a tool's seconds, over what the workload says."""


class ControlConfig(Table, frozen=True):
    """Who may look into the running job and change it, over its control sockets. They are the user's own in any case."""

    override: bool = True
    """Orders of the run's own user are taken: `libra allocate` and the like. False: everybody may only look."""
    group: str = ""
    """Name of a Unix group that may look; empty: nobody else."""


class SimulationConfig(Table, frozen=True):
    """What a simulation, or an emulated job, needs to be told; a real one has the real thing."""

    train: bool = True
    """False: optimiser steps take no time, as when one batch of rollouts is all that is of interest."""
    tp: PosInt = 1
    """Tensor-parallel degree of the trainer."""
    pp: PosInt = 1
    """Pipeline stages of the trainer."""
    micro_batches: PosInt = 1
    """Of one data-parallel replica in one round; they fill the pipeline."""
    recompute: bool = True
    """Activations are computed again in the backward pass."""
    same_node: bool = False
    """Weights are published inside a node, through host memory; else over the nodes' ports."""


class EmulatedFault(Table, frozen=True):
    """Makes one rank's gradient role misbehave: for tests of the system."""

    kind: Literal["none", "hang", "delay", "die"] = "none"
    """hang: it stands still, and its beats with it; delay: it goes on `delay_s` later; die: its process ends."""
    stage: Literal["joining", "accumulating", "sharing"] = "joining"
    """joining: when it is to install its first weights; accumulating: at its first micro-batch; sharing: while a core rank
    fetches its share."""
    rank: NatInt = 0
    delay_s: PosFloat = 10.0
    """Real seconds."""


class EmulationConfig(Table, frozen=True):
    """A live job without devices: real processes and sockets, whose work is to wait."""

    speed: PosFloat = 1.0
    """Run seconds that pass in a real one. Everything is told and reported in run seconds: costs, tools, the scheduler's
    waits, journal and summary. Only `[deadline]` is in real seconds, since processes and sockets are real."""
    real_groups: bool = False
    """Groups are formed for real, with gloo, by processes that import torch: for tests."""
    fault: EmulatedFault = EmulatedFault()


class Config(Table, frozen=True):
    """A whole run."""

    include: tuple[str, ...] = ()
    """Parts merged beneath this file, relative to it; later ones win, the file itself wins over all."""
    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    allocation: AllocationConfig = AllocationConfig()
    elastic: ElasticConfig = ElasticConfig()
    bucket: Annotated[tuple[BucketConfig, ...], Meta(min_length=1)] = (BucketConfig(),)
    scheduler: SchedulerConfig = SchedulerConfig()
    cost: CostConfig | None = None
    """None: no seconds are predicted; the scheduler counts tokens."""
    vllm: VllmConfig = VllmConfig()
    rollout: RolloutConfig = RolloutConfig()
    env: EnvConfig = field(default_factory=CalculatorConfig)
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    transcripts: TranscriptsConfig = TranscriptsConfig()
    deadline: DeadlineConfig = DeadlineConfig()
    control: ControlConfig = ControlConfig()
    simulation: SimulationConfig = SimulationConfig()
    truth: TruthConfig = TruthConfig()
    emulation: EmulationConfig = EmulationConfig()

    @property
    def live_env(self) -> LiveEnvConfig:
        """The environment with tasks to solve. Raises ConfigError for a workload, which has none."""
        if isinstance(self.env, WorkloadConfig):
            raise ConfigError(self.run.name, [NO_TASKS])
        return self.env

    @property
    def emulated(self) -> bool:
        """No rank computes anything: engines and trainers sleep, trajectories come from a workload."""
        return isinstance(self.env, WorkloadConfig)

    @property
    def in_run_seconds(self) -> "Config":
        """What the core and the journal are given: the deadlines, too, by the run's own clock. Idempotent."""
        speed = self.emulation.speed
        deadline = {name: getattr(self.deadline, name) for name in self.deadline.__struct_fields__}
        scaled = {name: s * speed if name.endswith("_s") else s for name, s in deadline.items()}
        return structs.replace(
            self, deadline=DeadlineConfig(**scaled), emulation=structs.replace(self.emulation, speed=1.0)
        )

    @property
    def max_lag(self) -> int:
        """L, in batches: what the user set, else the mode's own."""
        if self.rollout.max_lag is not None:
            return self.rollout.max_lag
        return {"async": 2, "one-step-off": 1, "sync": 0}[self.run.mode]

    @property
    def engine_buckets(self) -> tuple[str, ...]:
        """The name of the bucket of each engine that there is at first, by the engine's id."""
        return tuple(b.name for b in self.bucket for _ in range(b.engines))

    @property
    def bucket_names(self) -> tuple[str, ...]:
        """By index."""
        return tuple(b.name for b in self.bucket)

    @property
    def devices(self) -> int:
        """Device ranks that the run needs; torchrun starts one process more."""
        return self.allocation.trainer + self.allocation.gradient + sum(b.engines * b.tp for b in self.bucket)
