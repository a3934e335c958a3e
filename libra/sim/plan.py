"""What a simulation runs: a configuration checked against the cost model and completed from it.

Everything that could not be simulated is refused here, all faults at once, before the first event: parts that are missing,
engines that cannot exist, KV room beyond what the device has, a workload longer than any engine's room, a trainer that
does not fit, weights that arrive after their deadline. Nothing is clamped.
"""

from collections.abc import Iterator

from msgspec import Struct, structs

from libra.config import preflight
from libra.config.schema import BucketConfig, Config, CostConfig, TruthConfig
from libra.config.worlds import WorkloadConfig
from libra.core.cost import EngineCost
from libra.core.cost.training import REPLICA_BYTES, TrainLayout, layout_problems, train_memory
from libra.core.learned import Learned
from libra.errors import LibraError, PreflightError
from libra.sim.seconds import install_s, replica_of
from libra.sim.source import Source, open_source
from libra.telemetry import tree_file
from libra.workload.truth import Truth

NO_COST = (
    'cost: missing, expected [cost] with hardware = "a800-sxm4-80gb" and model = "qwen3-14b" (parts in configs/hardware and '
    "configs/model): a simulation takes its seconds from there"
)
NO_WORKLOAD = 'env.name: got "{got}", expected "workload" (or --trace FILE): an environment has no lengths of its own'


class Plan(Struct, frozen=True):
    """`config` is what the core is built from and what a journal's head holds: the KV room of every bucket is filled in, and
    all of it is in run seconds."""

    config: Config
    cost: CostConfig
    workload: WorkloadConfig
    engines: tuple[EngineCost, ...]
    """Of each bucket."""
    install_s: tuple[float, ...]
    """Of each bucket: seconds from the order to fetch weights until they are there, all engines fetching at once."""
    replica: TrainLayout
    """One data-parallel replica of the trainer: what works on one slot group of a round."""
    source: Source
    truth: Truth
    """How the machines differ from their costs; not for the core."""
    learned: Learned | None
    """What scheduling starts from."""

    @property
    def rollout_devices(self) -> int:
        return self.config.devices - self.config.allocation.trainer


def plan(config: Config) -> Plan:
    """Raises PreflightError or ConfigError with everything that is wrong."""
    if not isinstance(config.env, WorkloadConfig):
        raise PreflightError([NO_WORKLOAD.format(got=config.env.__struct_config__.tag)])
    if config.cost is None:
        raise PreflightError([NO_COST])
    problems: list[str] = []
    try:
        preflight.check(config, machine=False, live=False)
    except PreflightError as e:
        problems += e.problems
    costs: list[EngineCost] = []
    buckets: list[BucketConfig] = []
    for i, bucket in enumerate(config.bucket):
        try:
            engine = next((c for c in costs if c.tp == bucket.tp), None)
            engine = engine or EngineCost(config.cost.hardware, config.cost.model, bucket.tp)
        except PreflightError as e:
            problems += [f"bucket.{i}.tp: {p}" for p in e.problems]
            continue
        costs.append(engine)
        if bucket.kv_tokens > engine.capacity_tokens:
            problems.append(
                f"bucket.{i}.kv_tokens: got {bucket.kv_tokens}, expected at most {engine.capacity_tokens}, what TP {bucket.tp} "
                f"of {config.cost.model.name} on {config.cost.hardware.name} has beside the weights; 0 takes it all"
            )
        buckets.append(structs.replace(bucket, kv_tokens=bucket.kv_tokens or engine.capacity_tokens))
    replica = replica_of(config)
    problems += [*_trainer(config, config.cost, replica), *_lending(config, config.cost)]
    if problems:
        raise PreflightError(problems)
    complete = structs.replace(config.in_run_seconds, bucket=tuple(buckets))
    seconds = tuple(install_s(complete, config.cost, b) for b in buckets)
    problems += _deadlines(config, seconds)
    if problems:
        raise PreflightError(problems)
    source = open_source(complete, config.env)
    source.require_room(max(b.kv_tokens for b in buckets))
    told = structs.replace(complete, truth=TruthConfig())  # what the core is built from knows nothing of the truth
    learned = tree_file.start(complete)
    return Plan(told, config.cost, config.env, tuple(costs), seconds, replica, source, Truth(config.truth), learned)


def _trainer(config: Config, cost: CostConfig, replica: TrainLayout) -> Iterator[str]:
    if not config.simulation.train:
        return
    devices = config.allocation.trainer
    layout = structs.replace(replica, devices=devices)
    if wrong := layout_problems(cost.hardware, cost.model, layout):
        yield from (f"simulation: {w}" for w in wrong)
        return
    memory = train_memory(cost.hardware, cost.model, layout, config.trainer.micro_batch_tokens)
    if memory.fits:
        return
    try:
        fits = next((n for n in (2**i * devices for i in range(1, 8)) if _fits(config, cost, layout, n)), None)
    except LibraError:
        fits = None
    mend = (
        f"allocation.trainer = {fits} would fit"
        if fits
        else "lower trainer.micro_batch_tokens, or set simulation.recompute"
    )
    yield (
        f"allocation.trainer: got {devices} devices that need {memory.total_bytes / 1e9:.1f} GB each (optimiser state "
        f"{memory.state_bytes / 1e9:.1f}, activations {memory.activation_bytes / 1e9:.1f}, logits "
        f"{memory.logit_bytes / 1e9:.1f}), expected at most {memory.device_bytes / 1e9:.1f} GB; {mend}"
    )


def _lending(config: Config, cost: CostConfig) -> Iterator[str]:
    """Whether a gradient replica, one layout wide, holds the model."""
    if not config.allocation.gradient and config.elastic.rule == "off":
        return
    width = config.allocation.replica
    layout = structs.replace(replica_of(config), devices=width)
    if layout_problems(cost.hardware, cost.model, layout):
        yield f"allocation.replica: got {width}, expected a multiple of simulation.tp x simulation.pp"
        return
    tokens = config.trainer.micro_batch_tokens
    memory = train_memory(cost.hardware, cost.model, layout, tokens, REPLICA_BYTES)
    if not memory.fits:
        wider = (structs.replace(layout, devices=width * 2**i) for i in range(1, 6))
        fits = [x.devices for x in wider if train_memory(cost.hardware, cost.model, x, tokens, REPLICA_BYTES).fits]
        mend = f"allocation.replica = {fits[0]} would fit" if fits else "lower trainer.micro_batch_tokens"
        yield (
            f"allocation.replica: got {width} devices that need {memory.total_bytes / 1e9:.1f} GB each to lend gradients, "
            f"expected at most {memory.device_bytes / 1e9:.1f} GB; {mend}"
        )


def _fits(config: Config, cost: CostConfig, layout: TrainLayout, devices: int) -> bool:
    wider = structs.replace(layout, devices=devices)
    return train_memory(cost.hardware, cost.model, wider, config.trainer.micro_batch_tokens).fits


def _deadlines(config: Config, install_s: tuple[float, ...]) -> Iterator[str]:
    """Weights travel in run seconds, and their deadline counts real ones."""
    slowest = max(install_s) / config.emulation.speed
    if config.run.steps > 1 and slowest >= config.deadline.weights_s:
        yield (
            f"deadline.weights_s: got {config.deadline.weights_s:g}, expected more than {slowest:.1f}: so long do "
            f"{sum(b.engines for b in config.bucket)} engines take to fetch weights from {config.allocation.trainer} "
            "trainers at once; every engine would be replaced"
        )
