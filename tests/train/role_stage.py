"""Real trainer and gradient roles, each in a process with its own link, under a small controller of the test's own.

    stage = Stage(config, dtype)
    core = stage.start("trainer", 2);  stage.form(core)
    answers = stage.ask(core, lambda cmd, i: m.Open(...)).wait()

Role processes are forked from a server that has imported torch and the trainer once. Everything else is as in a run: a Unix
socket, a pipe that holds the process, a TCP store, gloo groups, weights links. A member that dies, or does not answer within
ANSWER_S, fails the test unless the test asks for just that.
"""

import multiprocessing
import os
import shutil
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from libra.config.schema import Config, WarmStartConfig
from libra.wire import messages as m
from libra.wire.frames import BlockingReader, Codec, pack

ANSWER_S = 100.0
TOKEN, INCARNATION = "token", "stage"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "libra.train.warm_start",
        "libra.rank.trainer_role",
        "libra.rank.gradient_role",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.models.llama.modeling_llama",
    ]
)


def _role(end: socket.socket, port: int, dtype_name: str, keep: str) -> None:
    """What `libra.rank.role` does, in a type of the test's choice; a trainer leaves its state in `keep` when it is stopped."""
    from libra.rank.gradient_role import GradientRole
    from libra.rank.link import RoleLink
    from libra.rank.pipe import SupervisorPipe, leave
    from libra.rank.trainer_role import TrainerRole

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pipe = SupervisorPipe(end)
    spec = pipe.order().spec
    link = RoleLink(spec, msgspec.json.decode(spec.config, type=Config), pipe)
    try:
        role = (TrainerRole if spec.role == "trainer" else GradientRole)(link, getattr(torch, dtype_name))
        role.run()
        if isinstance(role, TrainerRole):
            torch.save(trainer_state(role), keep)
    except Exception as e:
        link.send(m.Complaint(f"{type(e).__name__}: {e}", traceback.format_exc()))
        leave(1, str(e))
    leave(0, "done")


def trainer_state(role: Any) -> list[tuple[str, int, dict[str, torch.Tensor]]]:
    """(name, first element, parameter and Adam moments) of each piece that is not empty."""
    optimizer = role.trainer.summed._optimizer
    state = []
    for shard, local in zip(role.trainer.shards(), role.trainer.summed._local, strict=True):
        if local.numel():
            moments = {k: v.reshape(-1).clone() for k, v in optimizer.state[local].items() if k != "step"}
            state.append((shard.name, shard.start, {"parameter": shard.data.clone(), **moments}))
    return state


def assemble(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """The whole tensors out of what all core ranks left."""
    pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for path in paths:
        for name, start, tensors in torch.load(path):
            for kind, data in tensors.items():
                pieces.setdefault(f"{kind} of {name}", []).append((start, data))
    return {name: torch.cat([data for _, data in sorted(p, key=lambda x: x[0])]) for name, p in pieces.items()}


@dataclass(eq=False)
class Member:
    """One role process."""

    start: int
    process: Any
    pipe: socket.socket
    keep: Path
    here: threading.Event = field(default_factory=threading.Event)
    sock: socket.socket | None = None
    gone: bool = False
    complaint: str = ""
    held: dict[int, str] = field(default_factory=dict)
    """Version -> address, as a trainer says."""

    def send(self, message: m.Message) -> None:
        assert self.here.wait(ANSWER_S), f"member {self.start} never said hello"
        assert self.sock is not None
        self.sock.sendall(pack(message))

    def kill(self) -> None:
        self.process.kill()
        self.process.join(ANSWER_S)


class Pending:
    """An order that several members answer once each."""

    def __init__(self, stage: "Stage", members: Sequence[Member]) -> None:
        self._stage = stage
        self.members = members
        self.answers: dict[Member, Any] = {}

    @property
    def done(self) -> bool:
        return len(self.answers) == len(self.members)

    @property
    def failed(self) -> bool:
        """A member is gone without an answer."""
        return any(member.gone and member not in self.answers for member in self.members)

    def over(self, timeout_s: float = ANSWER_S) -> bool:
        """Waits; False where a member is gone."""
        with self._stage.changed:
            assert self._stage.changed.wait_for(lambda: self.done or self.failed, timeout_s), (
                f"no answer from {[x.start for x in self.members if x not in self.answers]} within {timeout_s} s"
            )
            return self.done

    def wait(self, expected: type | None = None) -> list[Any]:
        """The answers in the members' order, each of type `expected`."""
        assert self.over(), f"a member is gone: {[x.complaint for x in self.members]}"
        answers = [self.answers[member] for member in self.members]
        assert expected is None or all(isinstance(a, expected) for a in answers), answers
        return answers


class Stage:
    """`with Stage(config) as stage`: nothing is left behind."""

    def __init__(self, config: Config, dtype: str = "float64") -> None:
        self._config = msgspec.structs.replace(config, warm_start=WarmStartConfig(steps=0))
        self._dtype = dtype
        self._directory = Path(tempfile.mkdtemp(prefix="stage-", dir="/tmp"))
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._directory / "controller"))
        self._listener.listen()
        self.changed = threading.Condition()
        self.members: list[Member] = []
        self._pending: dict[int, Pending] = {}
        self._cmd = 0
        self._groups = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
            member.pipe.close()
        self._listener.close()
        shutil.rmtree(self._directory)

    def start(self, role: str, n: int) -> list[Member]:
        """`n` processes; does not wait for them."""
        members = []
        for _ in range(n):
            start = len(self.members)
            here, there = socket.socketpair()
            spec = m.RoleSpec(
                rank=start,
                start=start,
                role=role,  # type: ignore[arg-type]
                epoch=0,
                unit=0,
                bucket=0,
                incarnation=INCARNATION,
                token=TOKEN,
                controller=str(self._directory / "controller"),
                device="cpu",
                config=msgspec.json.encode(self._config),
            )
            keep = self._directory / f"state-{start}"
            here.sendall(pack(m.SpawnRole(start, spec, "")))
            process = _context.Process(
                target=_role, args=(there, self._store.port, self._dtype, str(keep)), daemon=True
            )
            members.append(Member(start, process, here, keep))
            self.members.append(members[-1])
            process.start()
            there.close()
            threading.Thread(target=self._drain, args=(here,), daemon=True).start()
        return members

    def form(self, members: Sequence[Member]) -> None:
        self._groups += 1
        prefix, n = f"{INCARNATION}/{self._groups}", len(members)
        self.ask(members, lambda cmd, i: m.FormMembers(cmd, prefix, i, n)).wait(m.Formed)

    def ask(self, members: Sequence[Member], order: Callable[[int, int], m.Message]) -> Pending:
        """Sends `order(cmd, index)` to each member."""
        with self.changed:
            self._cmd += 1
            cmd = self._cmd
            pending = self._pending[cmd] = Pending(self, members)
        for index, member in enumerate(members):
            if not member.gone:
                try:
                    member.send(order(cmd, index))
                except OSError:  # it dies just now: `failed` will say so
                    continue
        return pending

    def held(self, core: Sequence[Member], version: int) -> tuple[str, ...]:
        """Where the core serves `version`."""
        with self.changed:
            assert self.changed.wait_for(lambda: all(version in x.held for x in core), ANSWER_S), f"version {version}"
        return tuple(x.held[version] for x in core)

    def stop(self, members: Sequence[Member]) -> list[Path]:
        """In good order; the files with their states."""
        for member in members:
            member.send(m.Stop())
        for member in members:
            member.process.join(ANSWER_S)
            assert member.process.exitcode == 0, member.complaint
        return [member.keep for member in members]

    def _drain(self, pipe: socket.socket) -> None:
        try:
            while pipe.recv(65536):  # beats
                pass
        except OSError:
            return

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        reader: BlockingReader[Any] = BlockingReader(sock, Codec(m.ToController))
        hello = reader.receive()
        member = self.members[hello.start]
        member.sock = sock
        member.here.set()
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
                    case m.Held():
                        member.held[message.version] = message.address
                    case m.Complaint():
                        member.complaint = message.trace
                    case m.WarmProgress():
                        pass
                    case _:
                        assert member not in self._pending[message.cmd].answers, "answered twice"
                        self._pending[message.cmd].answers[member] = message
                self.changed.notify_all()


class Replica:
    """A gradient replica on a stage."""

    def __init__(self, stage: Stage, id: int, size: int) -> None:
        self.stage, self.id = stage, id
        self.members = stage.start("gradient", size)
        self.taken: list[Any] = []
        """What its sum of the present step holds, the round under way included."""
        self.round: Pending | None = None

    def form(self) -> None:
        self.stage.form(self.members)

    def install(self, version: int, sources: tuple[str, ...]) -> None:
        done = self.stage.ask(self.members, lambda cmd, _: m.Install(cmd, version, sources)).wait(m.Installed)
        assert [a.version for a in done] == [version] * len(self.members)
        self.taken = []

    def accumulate(self, step: int, version: int, loss_tokens: int, micro: Sequence[list[m.Sample]]) -> Pending:
        """One micro-batch a member, dummies for the rest."""
        dealt = [*micro, *[[]] * (len(self.members) - len(micro))]
        self.taken += micro
        self.round = self.stage.ask(
            self.members, lambda cmd, i: m.Accumulate(cmd, step, version, loss_tokens, dealt[i])
        )
        return self.round

    def offer(self, step: int) -> Pending:
        return self.stage.ask(self.members, lambda cmd, _: m.OfferShare(cmd, step))

    def fetch(self, core: Sequence[Member], step: int, offered: Sequence[Any], deadline_s: float = 30.0) -> Pending:
        """Orders the core to stage what the members have offered."""
        return fetch(self.stage, core, step, self.id, offered, [o.address for o in offered], deadline_s)


def fetch(
    stage: Stage,
    core: Sequence[Member],
    step: int,
    replica: int,
    offered: Sequence[Any],
    sources: Sequence[str],
    deadline_s: float,
) -> Pending:
    [version] = {o.version for o in offered}
    notes = [o.note for o in offered]
    return stage.ask(
        core,
        lambda cmd, i: m.FetchShare(cmd, step, replica, version, tuple(sources), notes if i == 0 else [], deadline_s),
    )
