"""Real vLLM role processes, each with its own link, under a small controller of the test's own that also publishes weights.

    with Stage() as stage:
        engine = stage.engine(tp=2);  stage.publish(0, weights_of(0));  engine.install(0)
        done = engine.turns(turn(1), turn(2))

Roles are forked from a server that has imported vLLM once. Everything else is as in a run: a Unix socket, a pipe that holds the
process, a TCP store, gloo groups, weights links.
"""

import contextlib
import multiprocessing
import os
import shutil
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from libra.config.schema import AllocationConfig, BucketConfig, CalculatorConfig, Config, ModelConfig, VllmConfig
from libra.env.registry import vocabulary
from libra.train.model import build
from libra.weights.layout import Shard
from libra.weights.publisher import Publisher
from libra.wire import messages as m
from libra.wire.frames import BlockingReader, Codec, pack

ANSWER_S = float(os.environ.get("LIBRA_VLLM_ANSWER_S", "110"))
OUTSTANDING = 96
"""Turns that keep an engine busy: three times as many as run at a time."""
TOKEN, INCARNATION = "token", f"vllm-stage-{os.getpid()}"
MODEL = ModelConfig(hidden=128, heads=4, kv_heads=4, layers=2, ffn=192)
VOCABULARY = vocabulary(CalculatorConfig()).size
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["libra.rank.vllm_role", "vllm_preload"])


def _role(end: socket.socket, port: int) -> None:
    """What `libra.rank.role` does."""
    from libra.rank.link import RoleLink
    from libra.rank.pipe import SupervisorPipe, leave
    from libra.rank.vllm_role import VllmRole

    os.setsid()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pipe = SupervisorPipe(end)
    spec = pipe.order().spec
    link = RoleLink(spec, msgspec.json.decode(spec.config, type=Config), pipe)
    try:
        VllmRole(link).run()
    except Exception as e:
        link.send(m.Complaint(f"{type(e).__name__}: {e}", traceback.format_exc()))
        leave(1, str(e))
    leave(0, "done")


def config_of(model: ModelConfig = MODEL, vllm: VllmConfig | None = None, **bucket: Any) -> Config:
    tp = bucket.pop("tp", 1)
    shape = {"kv_tokens": 4096, "max_batch": 32, **bucket}
    return Config(
        model=model,
        allocation=AllocationConfig(trainer=1),
        bucket=(BucketConfig(engine="vllm", tp=tp, **shape),),
        vllm=vllm or VllmConfig(),
    )


def network(seed: int, model: ModelConfig = MODEL) -> Any:
    """The policy as the trainer has it."""
    return build(model, VOCABULARY, seed)


def turn(traj: int, context: int = 9, new: int = 8, cmd: int = 0) -> m.Turn:
    return m.Turn(cmd, traj, [(5 * traj + i) % VOCABULARY for i in range(context)], new, (0, traj, 0, 0))


def gap(policy: Any, given: m.Turn, done: m.TurnDone) -> float:
    """Worst difference of a sampled token's log-probability between the trainer's model and the engine."""
    with torch.no_grad():
        logits = policy(torch.tensor([given.tokens + done.tokens])).logits[0].float()
    expected = torch.log_softmax(logits, -1)
    at = len(given.tokens) - 1
    return max(
        abs(expected[at + i, t].item() - p) for i, (t, p) in enumerate(zip(done.tokens, done.logprobs, strict=True))
    )


@dataclass(eq=False)
class Member:
    process: Any
    pipe: socket.socket
    sock: socket.socket | None = None
    gone: bool = False
    complaint: str = ""
    doing: str = ""
    answers: dict[int, Any] = field(default_factory=dict)
    """By command."""


class EngineOnStage:
    """The ranks of one engine, its first the leader."""

    def __init__(self, stage: "Stage", members: list[Member]) -> None:
        self.stage, self.members = stage, members
        self.stats: m.EngineStats | None = None
        self.reports = self.running_reports = 0
        self.version = -1
        self.done: dict[int, m.TurnDone] = {}
        """By trajectory."""

    def ask(self, order: Callable[[int, int], m.Message]) -> list[Any]:
        """Sends `order(cmd, index)` to each rank; all answers."""
        return self.answers(self.order(order))

    def order(self, order: Callable[[int, int], m.Message]) -> int:
        cmd = self.stage.next_cmd()
        for index, member in enumerate(self.members):
            self.send(order(cmd, index), member)
        return cmd

    def answers(self, cmd: int) -> list[Any]:
        self.stage.until(f"answers to {cmd}", lambda: all(cmd in x.answers for x in self.members), self)
        return [x.answers[cmd] for x in self.members]

    def send(self, message: m.Message, member: Member | None = None) -> None:
        sock = (member or self.members[0]).sock
        assert sock is not None
        sock.sendall(pack(message))

    def install(self, version: int) -> None:
        answers = self.ask(lambda cmd, _: m.Install(cmd, version, self.stage.sources))
        assert all(isinstance(a, m.Installed) for a in answers), answers
        assert {a.version for a in answers} == {version}
        self.version = version

    def install_next(self, seed: int) -> int:
        """Publishes the weights of this seed as the next version and installs them."""
        version = self.stage.publish_next(network(seed))
        self.install(version)
        return version

    def settled_stats(self) -> m.EngineStats:
        """A report that was made after now."""
        seen = self.reports
        self.stage.until("two reports", lambda: self.reports >= seen + 2, self)
        assert self.stats is not None
        return self.stats

    def until_gone(self) -> None:
        with self.stage.changed:
            assert self.stage.changed.wait_for(lambda: all(x.gone for x in self.members), ANSWER_S)

    def turns(self, *turns: m.Turn) -> list[m.TurnDone]:
        """Gives these and waits for all of them."""
        for each in turns:
            self.send(each)
        return self.wait_for(*(each.traj for each in turns))

    def wait_for(self, *trajs: int) -> list[m.TurnDone]:
        self.stage.until(f"turns of {trajs}", lambda: all(t in self.done for t in trajs), self)
        return [self.done.pop(t) for t in trajs]

    def busy(self, trajs: range = range(100_000)) -> list[m.Turn]:
        """Gives turns, ever more where it must, until a report tells of running ones: then some run, and many wait."""
        given: list[m.Turn] = []
        seen = self.running_reports

        def left() -> int:
            return len(given) - sum(t.traj in self.done for t in given)

        while True:
            for traj in trajs[len(given) : len(given) + OUTSTANDING - left()]:
                given.append(turn(traj, context=5, new=90))
                self.send(given[-1])
            self.stage.until("a report", lambda: self.running_reports > seen or left() < OUTSTANDING // 2, self)
            if self.running_reports > seen:
                return given

    def end(self) -> None:
        """As a supervisor ends roles."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.pipe.shutdown(socket.SHUT_WR)
        for member in self.members:
            member.process.join(10.0)
            member.process.kill()
            member.process.join(10.0)


class Stage:
    def __init__(self, config: Config | None = None) -> None:
        self.config = config or config_of()
        self._directory = Path(tempfile.mkdtemp(prefix="vllm-stage-", dir="/tmp"))
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._directory / "controller"))
        self._listener.listen()
        self._publisher = Publisher(token=TOKEN, incarnation=INCARNATION)
        self.changed = threading.Condition()
        self.members: list[Member] = []
        self._engine_of: dict[int, EngineOnStage] = {}
        self._cmd = self._groups = 0
        self.newest = -1
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.process.kill()
            member.process.join(10.0)
            member.pipe.close()
        self._listener.close()
        self._publisher.close()
        shutil.rmtree(self._directory)

    @property
    def sources(self) -> tuple[str, ...]:
        return (self._publisher.address,)

    def next_cmd(self) -> int:
        self._cmd += 1
        return self._cmd

    def publish(self, version: int, policy: Any) -> None:
        """What the trainer does after a step."""
        shards = [Shard(n, tuple(p.shape), 0, p.detach().reshape(-1)) for n, p in policy.named_parameters()]
        self._publisher.publish(version, shards)
        self.newest = version

    def publish_next(self, policy: Any) -> int:
        self.publish(self.newest + 1, policy)
        return self.newest

    def engine(self, tp: int = 1, config: Config | None = None) -> EngineOnStage:
        """Started, formed and warmed up; without weights."""
        engine = self.start(tp, config)
        self.form(engine)
        return engine

    def start(self, tp: int, config: Config | None = None) -> EngineOnStage:
        config = config or self.config
        config = msgspec.structs.replace(config, bucket=(msgspec.structs.replace(config.bucket[0], tp=tp),))
        engine = EngineOnStage(self, [])
        for _ in range(tp):
            engine.members.append(self._member(config, engine))
        self.until("hellos", lambda: all(x.sock for x in engine.members), engine)
        return engine

    def form(self, engine: EngineOnStage) -> None:
        self._groups += 1
        prefix, n = f"{INCARNATION}/{self._groups}", len(engine.members)
        assert all(isinstance(a, m.Formed) for a in engine.ask(lambda cmd, i: m.FormMembers(cmd, prefix, i, n)))

    def until(self, what: str, condition: Callable[[], bool], engine: EngineOnStage) -> None:
        with self.changed:
            ok = self.changed.wait_for(lambda: condition() or any(x.gone for x in engine.members), ANSWER_S)
            words = [(x.doing, x.complaint) for x in engine.members]
            assert ok, f"not within {ANSWER_S} s: {what}; {words}"
            assert condition(), f"a rank is gone before: {what}; {words}"

    def _member(self, config: Config, engine: EngineOnStage) -> Member:
        start = len(self.members)
        here, there = socket.socketpair()
        spec = m.RoleSpec(
            rank=start,
            start=start,
            role="rollout",
            epoch=0,
            unit=0,
            bucket=0,
            incarnation=INCARNATION,
            token=TOKEN,
            controller=str(self._directory / "controller"),
            device="cpu",
            config=msgspec.json.encode(config),
        )
        here.sendall(pack(m.SpawnRole(start, spec, "")) + pack(m.Lease(time.monotonic() + 3600)))
        process = _context.Process(target=_role, args=(there, self._store.port), daemon=True)
        member = Member(process, here)
        self.members.append(member)
        self._engine_of[start] = engine
        process.start()
        there.close()
        threading.Thread(target=self._beats, args=(member,), daemon=True).start()
        return member

    def _beats(self, member: Member) -> None:
        reader: BlockingReader[m.Beat] = BlockingReader(member.pipe, Codec(m.Beat))
        with contextlib.suppress(EOFError, OSError):
            while True:
                member.doing = reader.receive().doing

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        reader: BlockingReader[Any] = BlockingReader(sock, Codec(m.ToController))
        start = reader.receive().start
        member, engine = self.members[start], self._engine_of[start]
        with self.changed:
            member.sock = sock
            self.changed.notify_all()
        while True:
            try:
                message = reader.receive()
            except (EOFError, OSError):
                with self.changed:
                    member.gone = True
                    self.changed.notify_all()
                return
            with self.changed:
                match message:
                    case m.Complaint():
                        member.complaint = message.trace
                    case m.EngineStats():
                        engine.stats = message
                        engine.reports += 1
                        engine.running_reports += message.running > 0
                    case m.TurnsDone(turns=turns):
                        engine.done |= {t.traj: t for t in turns}
                    case _:
                        assert message.cmd not in member.answers, "answered twice"
                        member.answers[message.cmd] = message
                self.changed.notify_all()
