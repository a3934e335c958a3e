"""What a live job happens in: an environment with real tasks, or a workload of which only lengths exist.

Either knows the configuration as processes are told it, the one that the core and the journal get, and how to keep episodes.
The only place in the controller that asks which of the two it is.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio.abc
from msgspec import structs

from libra.config.schema import BucketConfig, Config
from libra.controller.clock import Clock
from libra.controller.episodes import Episodes, Transcripts
from libra.controller.workload_episodes import WorkloadEpisodes
from libra.core.cost import EngineCost
from libra.core.events import AnyEvent
from libra.env.registry import environment
from libra.sim.plan import plan

Post = Callable[[AnyEvent], None]


def with_room(config: Config) -> Config:
    """`kv_tokens = 0` of real engines becomes what the cost model finds beside the weights (the preflight wants one then)."""
    cost = config.cost
    if cost is None:
        return config

    def complete(bucket: BucketConfig) -> BucketConfig:
        room = bucket.kv_tokens or EngineCost(cost.hardware, cost.model, bucket.tp).capacity_tokens
        return structs.replace(bucket, kv_tokens=room)

    return structs.replace(config, bucket=tuple(complete(b) for b in config.bucket))


class RealWorld:
    def __init__(self, config: Config) -> None:
        self.config = self.core_config = with_room(config)
        self._environment = environment(config.live_env, config.model)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Tool workers, while the run goes on."""
        return self._environment.running()

    def episodes(self, tasks: anyio.abc.TaskGroup, clock: Clock, post: Post, transcripts: Transcripts) -> Episodes:
        seed, deadline_s = self.config.run.seed, self.config.live_env.tool.deadline_s
        return Episodes(self._environment, self.config.reward, seed, deadline_s, tasks, clock, post, transcripts)


class EmulatedWorld:
    """The core is told everything in run seconds; only the processes' deadlines are real ones."""

    def __init__(self, config: Config) -> None:
        self._plan = plan(config)
        self.core_config = self._plan.config
        self.config = structs.replace(config, bucket=self.core_config.bucket)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Nothing has to be started."""
        return nullcontext()

    def episodes(
        self, tasks: anyio.abc.TaskGroup, clock: Clock, post: Post, transcripts: Transcripts
    ) -> WorkloadEpisodes:
        """There is nothing to be read of them."""
        return WorkloadEpisodes(self._plan, tasks, clock, post)


World = RealWorld | EmulatedWorld


def world_of(config: Config) -> World:
    """Raises ConfigError or PreflightError where the environment, or the plan of an emulated job, has faults."""
    return EmulatedWorld(config) if config.emulated else RealWorld(config)
