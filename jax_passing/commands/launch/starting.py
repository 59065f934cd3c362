"""`jax-passing run` starts its ranks here or over ssh, and a switch for them, and gives them their settings."""

import asyncio
import ipaddress
import os
import random
import re
import shlex
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console

from jax_passing.commands.launch import remote
from jax_passing.commands.launch.child import TERMINATE_S, Child, follow, start
from jax_passing.commands.terminal import TaggedOutput
from jax_passing.config import FOR_JAX, PREFIX, address_text
from jax_passing.errors import ConfigError
from jax_passing.for_jax import environment

HOSTS_MAX = 64
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # nobody is there to type a password
COORDINATOR = "JAX_COORDINATOR_ADDRESS"
COORDINATOR_PORTS = (20000, 30000)  # on another machine, where none can be reserved: below those that systems give away
HANDED_OVER = ("JAX_", "XLA_")  # variables that begin so are taken along to other machines


def machines_of(hosts: str) -> tuple[int, list[str]]:
    """Returns how many ranks `--hosts` asks for, and the machines to start them on (none: this machine)."""
    machines: list[str] = [] if hosts.strip().isdecimal() else [name.strip() for name in hosts.split(",")]
    count = len(machines) or int(hosts)
    for name in machines:
        a_number = re.fullmatch(r"\d+(\.\d*)?", name)
        if a_number or not re.fullmatch(r"[\w.@:%\[\]][\w.@:%\[\]-]*", name):
            raise ConfigError(f"Bad value {hosts!r} of --hosts: {name!r} is neither a machine nor a whole number.")
    if not 1 <= count <= HOSTS_MAX:
        raise ConfigError(f"Bad value {hosts!r} of --hosts: expected 1 to {HOSTS_MAX} hosts.")
    return count, machines


def _addresses(machine: str) -> tuple[str, str] | None:
    """Returns the address of that machine, and this machine's own one on the way to it. None: only ssh knows it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(_name(machine), 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(address[0]), str(probe.getsockname()[0])
    except OSError:
        return None


def _name(machine: str) -> str:
    """Returns the name or address in `user@name`, as the resolver takes it."""
    return machine.rpartition("@")[2].removeprefix("[").removesuffix("]")


def is_here(machine: str) -> bool:
    """Tells whether a rank on that machine needs no ssh, as it is this one. Another user's does."""
    if "@" in machine or (found := _addresses(machine)) is None:
        return False
    there, _ = found
    with socket.socket(socket.AF_INET6 if ":" in there else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((there, 0))
        except OSError:  # an address of another machine
            return False
    return True


def own_address(machines: Sequence[str]) -> str:
    """Returns an address of this machine that all of these machines can reach. Raises ConfigError if none is known.

    The name of this machine often means a loopback address here, which the others can't reach.
    """
    known = [found[1] for machine in machines if (found := _addresses(machine)) is not None]
    outside = [address for address in known if not ipaddress.ip_address(address).is_loopback]
    if outside or (known and len(known) == len(machines)):
        return (outside or known)[0]
    raise ConfigError(
        f"No address of this machine is known that {', '.join(machines)} can reach, as their names aren't known here. "
        "Give addresses, or start a switch and say where it is (--switch HOST:PORT)."
    )


def job_of_run(switch: str | None) -> str:
    """Returns a name that no other run has; or the given one, if there is a key, as that belongs to a name.

    Raises ConfigError.
    """
    if not os.environ.get(PREFIX + "KEY_FILE"):
        return f"run-{uuid.uuid4().hex[:8]}"
    job = os.environ.get(PREFIX + "JOB")
    if switch is None or not job:
        raise ConfigError(
            f"{PREFIX}KEY_FILE is set: the hosts have the key of a job at a switch with a key. Name that switch "
            f"(--switch HOST:PORT) and that job ({PREFIX}JOB)."
        )
    return job


async def start_switch(output: TaggedOutput, machines: Sequence[str]) -> tuple[Child, str]:
    """Starts a switch for ranks on these machines (none: on this one). Returns the process and its address."""
    address = own_address(machines) if machines else "127.0.0.1"
    command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--quiet", "--listen", address_text(address, 0)]
    child = await start("switch", command, {**os.environ, "PYTHONUNBUFFERED": "1"})
    first = (await child.stdout.readline()).decode().strip()
    follow(child, output)
    if not first.startswith("listening on "):
        await asyncio.wait(child.readers, timeout=TERMINATE_S)
        raise ConfigError("The embedded switch didn't start; its messages are above.")
    return child, first.removeprefix("listening on ")


class Coordinator:
    """`jax.distributed` has its coordinator in rank 0, at an address that all ranks know before it is there.

    Attributes:
      variables: by which JAX finds it; none if the user has named another one, or it isn't known how rank 0's machine
        is called.
    """

    def __init__(self, machines: Sequence[str]):
        """`machines` are those of Run."""
        self._reserved: socket.socket | None = None
        self.variables: dict[str, str] = {}
        if os.environ.get(COORDINATOR):
            return
        if not machines:
            self._reserved = _reserve_port()
            self.variables[COORDINATOR] = f"127.0.0.1:{self._reserved.getsockname()[1]}"
            return
        if _addresses(machines[0]) is None:  # only ssh knows it
            return
        with suppress(ConfigError):
            name = own_address(machines) if is_here(machines[0]) else _name(machines[0])
            self.variables[COORDINATOR] = address_text(name, random.randrange(*COORDINATOR_PORTS))

    def close(self) -> None:
        if self._reserved is not None:
            self._reserved.close()


def _reserve_port() -> socket.socket:
    """Keeps a port from all others but rank 0's coordinator, which binds it a second time, as gRPC lets one do."""
    family, anywhere = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
    reserved = socket.socket(family)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((anywhere, 0))
    return reserved


@dataclass(frozen=True)
class Run:
    """The settings that all ranks of a run share.

    Attributes:
      arguments: of the Python interpreter.
      machines: where the ranks are started, in their order, over ssh unless it is this one; none: all here.
      hosts: how many ranks.
      devices: of each rank.
      switch: its address, or those of several.
      job: its name.
      for_jax: their JAX's own collectives go through the switch.
      noun: their name in the output. Where they are started again, sessions give them other ranks than we did.
      coordinator: variables by which `jax.distributed.initialize()` finds its coordinator.
      console: where the ranks' output is shown.
    """

    arguments: Sequence[str]
    machines: Sequence[str]
    hosts: int
    devices: int
    switch: str
    job: str
    for_jax: bool
    noun: str
    coordinator: Mapping[str, str]
    console: Console

    async def start(self, rank: int) -> Child:
        tag = f"{self.noun} {rank}"
        ours = self._environment(rank)
        if not self.machines or is_here(machine := self.machines[rank]):
            everything = {"JAX_PLATFORMS": "cpu", **remote.of_rank(ours)}
            return await start(tag, [sys.executable, *self.arguments], everything)
        taken = {name: value for name, value in os.environ.items() if name.startswith(HANDED_OVER)}
        order = remote.order(self.arguments, {"JAX_PLATFORMS": "cpu", **taken, **ours}, os.getcwd())
        there = shlex.join([sys.executable, "-P", "-m", "jax_passing.commands.launch.remote"])
        try:
            return await start(tag, [*SSH, machine, there], order=order)
        except FileNotFoundError as error:
            raise ConfigError(f"Other machines are reached by ssh, and there is none here: {error}.") from error

    def _environment(self, rank: int) -> dict[str, str]:
        ours = {
            **self.coordinator,
            PREFIX + "SWITCH": self.switch,
            PREFIX + "JOB": self.job,
            PREFIX + "RANK": str(rank),
            PREFIX + "WORLD_SIZE": str(self.hosts),
            "JAX_NUM_CPU_DEVICES": str(self.devices),
            "PYTHONUNBUFFERED": "1",
            # Loops over sets are then in the same order on all hosts.
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        }
        if self.for_jax:
            # Another machine has the library in another folder, which its interpreter finds as it starts.
            ours |= {FOR_JAX: "1"} | ({} if self.machines else environment.variables())
        if self.console.is_terminal:
            # Rich then draws its bars into our pipe, which shows them as rank 0's last line.
            interactive = str(int(rank == 0))
            ours |= {
                "TTY_COMPATIBLE": "1",
                "TTY_INTERACTIVE": interactive,
                "COLUMNS": str(self.console.width - len(f"[{self.noun} 00] ")),
            }
        return ours
