"""The hosts and switches that `faults.py` disturbs: each is a machine of its own, a network namespace of a star."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "star"))

from star_network import StarNetwork

from jax_passing.protocol import keys

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER.parents[1] / "examples" / "train_elastic.py"
PORT = 7171
JOB = "faults"
RESTART_S = 3.0  # from a death to the next start
LISTEN_S = 60.0
LAYOUTS = ("standby", "alone", "tree")
COMPILE_S = 25.0


class Step(NamedTuple):
    """A host has taken a step. `time_s`: on the machine's monotonic clock."""

    time_s: float
    epoch: int
    rank: int
    world_size: int
    number: int
    digest: str


class Epochs:
    """A host that stood still notes its last step when it goes on: by then the others are in a later epoch."""

    def __init__(self) -> None:
        self._newest, self._over = 0, set[int]()

    def is_late(self, step: Step) -> bool:
        """Is asked in the order in which steps are noted."""
        if step.epoch in self._over:
            return True
        if step.epoch != self._newest:
            self._over.add(self._newest)
            self._newest = step.epoch
        return False


@dataclass(eq=False)
class Machine:
    """A process and its namespace.

    Attributes:
      place: the namespace's number in the star.
      parent: of a rack's switch.
      variant: how a host's next process differs from the others: "" if it doesn't.
      died_s: when it was seen to have ended; None while it runs.
      ended_by_itself: how often it ended though no fault had ended it.
      log, steps: a host's notes, the latter by job.
    """

    name: str
    place: int
    parent: "Machine | None" = None
    variant: str = ""
    process: "subprocess.Popen[bytes] | None" = None
    died_s: float | None = None
    was_killed: bool = False
    ended_by_itself: int = 0
    log: Path = Path()
    steps: list[list[Step]] = field(default_factory=lambda: [[]])
    read_bytes: int = 0

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.was_killed |= number not in (signal.SIGSTOP, signal.SIGCONT)
        if self.process.poll() is None:
            self.process.send_signal(number)


class Cluster:
    """Starts what has died again, and reads what hosts note.

    Attributes:
      hosts, switches: the first of the switches is the hosts' own, or the root; the second is the standby, if there is
        one.
      job_number: that of the job, which is a new one if all hosts were lost.
    """

    def __init__(self, star: StarNetwork, folder: Path, hosts: int, options: Any):
        self._star, self._folder, self._options = star, folder, options
        self.hosts = [Machine(f"host{host}", host) for host in range(hosts)]
        self.switches = [Machine("switch", hosts)]
        if options.layout != "alone":
            self.switches.append(Machine("standby", hosts + 1))
        if options.layout == "tree":
            root = self.switches[0]
            self.switches += [Machine(f"rack{rack}", hosts + 2 + rack, root) for rack in range(2)]
        self.job_number = 0
        self._switch_key = keys.new_key() if options.keys else None
        self._make_examples()

    @staticmethod
    def places(hosts: int, layout: str) -> int:
        return hosts + {"alone": 1, "standby": 2, "tree": 4}[layout]

    def _make_examples(self) -> None:
        """Makes two copies of the hosts' program: one has a line of comment more."""
        for name, first in (("same", ""), ("other", "# A line more.\n")):
            (self._folder / name).mkdir()
            (self._folder / name / EXAMPLE.name).write_text(first + EXAMPLE.read_text())

    def _key_file(self, kind: str, key: bytes) -> str:
        path = self._folder / f"{kind}{self.job_number}.key"
        path.touch(mode=0o600)
        path.write_text(keys.key_line(kind, key))
        return str(path)

    # Processes.

    def address(self, machine: Machine) -> str:
        return f"{self._star.address(machine.place)}:{PORT}"

    def start_switch(self, machine: Machine) -> None:
        """Returns when it listens. torchft's is its lighthouse."""
        if self._options.contender == "torchft":
            lighthouse = str(Path(os.environ["FAULTS_TORCHFT"]) / "bin" / "torchft_lighthouse")
            bind = ["--bind", self.address(machine), "--min_replicas", str(self._options.world_size_min)]
            self._start(machine, [lighthouse, *bind], {})
            return
        command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", self.address(machine)]
        if machine.parent is not None:
            command += ["--parent", self.address(machine.parent)]
        if self._switch_key is not None:
            command += ["--key-file", self._key_file(keys.SWITCH, self._switch_key)]
        output = self._folder / f"{machine.name}.txt"
        before = output.read_text().count("listening on") if output.exists() else 0
        self._start(machine, command, {})
        until = time.monotonic() + LISTEN_S
        while output.read_text().count("listening on") <= before:
            assert time.monotonic() < until, f"the switch doesn't listen: {output.read_text()}"
            time.sleep(0.02)

    @property
    def _job(self) -> str:
        return f"{JOB}{self.job_number}"

    def start_host(self, machine: Machine) -> None:
        rank, options = self.hosts.index(machine), self._options
        racks = self.switches[2:]
        switch = racks[rank % 2] if racks else self.switches[0]
        environment = {
            "JAX_PASSING_SWITCH": self.address(switch),
            "JAX_PASSING_JOB": self._job,
            "JAX_PASSING_RANK": str(rank),
            "JAX_PASSING_WORLD_SIZE": str(len(self.hosts)),
            "JAX_PASSING_WORLD_SIZE_MIN": str(options.world_size_min),
            "FAULTS_EXAMPLES": str(self._folder / ("other" if machine.variant == "program" else "same")),
            "PYTHONHASHSEED": "0",
            "JAX_PLATFORMS": "cpu",
        }
        if options.layout != "alone":
            environment["JAX_PASSING_STANDBY"] = self.address(self.switches[1])
        if self._switch_key is not None:
            environment["JAX_PASSING_KEY_FILE"] = self._key_file(keys.JOB, keys.job_key(self._switch_key, self._job))
        if machine.variant == "wire":
            environment["JAX_PASSING_WIRE_DTYPE"] = "int16"
        self.read(machine)
        log = self._folder / f"{machine.name}-{self.job_number}.json"
        if machine.log != log:
            machine.log, machine.read_bytes = log, 0
        command = [*host_command(log, options), "--step-s", str(options.step_ms / 1e3)]
        command += ["--compile-s", str(COMPILE_S)] if machine.variant == "slow" else []
        self._start(machine, command, environment)

    def _start(self, machine: Machine, command: list[str], environment: dict[str, str]) -> None:
        with (self._folder / f"{machine.name}.txt").open("a") as output:
            output.write(f"{time.monotonic():.3f}: starts\n")
            output.flush()
            own = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
            settings = own | environment | {"PYTHONUNBUFFERED": "1"}
            machine.process = self._star.start(
                machine.place, command, stdout=output, stderr=subprocess.STDOUT, env=settings
            )
        machine.died_s, machine.was_killed = None, False

    def look(self) -> list[str]:
        """Reads what hosts have noted, and starts again what died long enough ago. Returns the names of those that
        ended by themselves since the last look."""
        ended = []
        for machine in (*self.switches, *self.hosts):
            assert machine.process is not None
            self.read(machine)
            if machine.process.poll() is None:
                continue
            now = time.monotonic()
            if machine.died_s is None:
                machine.died_s = now
                if not machine.was_killed:
                    machine.ended_by_itself += 1
                    ended += [] if machine.variant else [machine.name]
            elif now - machine.died_s >= RESTART_S:
                (self.start_host if machine in self.hosts else self.start_switch)(machine)
        return ended

    def read(self, machine: Machine) -> None:
        if not machine.log.is_file():
            return
        with machine.log.open() as log:
            log.seek(machine.read_bytes)
            text = log.read()
        whole = text[: text.rfind("\n") + 1]
        machine.read_bytes += len(whole)
        machine.steps[-1] += [Step(*json.loads(line)) for line in whole.splitlines()]

    def begin_anew(self) -> None:
        """All hosts were lost, or stand still for good: another job begins."""
        for machine in (*self.hosts, *self.switches):
            machine.signal(signal.SIGKILL)
        for machine in self.hosts:
            assert machine.process is not None
            machine.process.wait()
            self.read(machine)
            machine.steps.append([])
        self.job_number += 1

    def end(self) -> None:
        """Ends all hosts as they are: what counts is noted."""
        for machine in self.hosts:
            machine.signal(signal.SIGKILL)
            assert machine.process is not None
            machine.process.wait()
            self.read(machine)

    def last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.txt").read_text().splitlines()
        return next((line for line in reversed(lines) if line and not line[0].isspace()), "")

    # Faults do this.

    def serving(self) -> Machine:
        """Returns the switch where hosts have most connections."""
        return max(self.switches[:2], key=_connections)

    def cut(self, machine: Machine, is_cut: bool = True) -> None:
        """Takes a machine's cable out, or puts it in again."""
        self._star.plug(machine.place, is_in=not is_cut)

    def keep(self, folder: Path) -> None:
        """Copies all logs and outputs there."""
        shutil.copytree(self._folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.key"))


def host_command(log: Path, options: Any) -> list[str]:
    command = [sys.executable, str(FOLDER / "faults_host.py")]
    if options.contender == "torchft":
        command = [str(Path(os.environ["FAULTS_TORCHFT"]) / "bin" / "python"), str(FOLDER / "torchft_host.py")]
    return [*command, "--log", str(log), "--steps", str(options.steps), "--mebibytes", str(options.mebibytes)]


def _connections(machine: Machine) -> int:
    assert machine.process is not None
    try:
        lines = Path(f"/proc/{machine.process.pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:  # it has just ended
        return 0
    cells = [line.split() for line in lines]
    return sum(own.endswith(f":{PORT:04X}") and state == "01" for _, own, _, state, *_ in cells)


def draw(among: "list[Machine]", chance: random.Random) -> Machine:
    """Returns one that runs."""
    return chance.choice([one for one in among if one.process is not None and one.process.poll() is None] or among)
