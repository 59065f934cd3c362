"""`jax-passing run`: several hosts, one process each, here or over ssh, and a switch if none is given."""

import asyncio
import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rich.console import Console

from jax_passing.commands import remote
from jax_passing.commands.terminal import LineSplitter, TaggedOutput
from jax_passing.config import PREFIX, address_text, parse_switches
from jax_passing.errors import ConfigError

TERMINATE_S = 5.0  # between SIGTERM and SIGKILL
SETTLE_S = 1.0  # how long other ranks may fail too before the culprit is named
TAIL_LINES = 200
HOSTS_MAX = 64
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # nobody is there to type a password
SSH_FAILED = 255  # its own exit code; else that of the remote command
HANDED_OVER = ("JAX_", "XLA_")  # variables that begin so are taken along to other machines
READ_BYTES = 4096  # at most so many lines at once; rich takes some 50 us for each
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: after a fork it might deadlock


def die_with(parent: int) -> Callable[[], None]:
    """For Popen's preexec_fn: a process that is killed with SIGKILL leaves no orphans. `parent`: its pid."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


@dataclass(eq=False)
class Child:
    """A process in a session, hence a process group, of its own."""

    tag: str
    process: asyncio.subprocess.Process
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))  # of stderr
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    def signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def traceback(self) -> list[str]:
        starts = [index for index, line in enumerate(self.tail) if line.startswith("Traceback (most recent call last)")]
        return list(self.tail)[starts[-1] if starts else -20 :]


async def _stream(descriptor: int) -> asyncio.StreamReader:
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(descriptor, "rb", buffering=0))
    return stream


async def _start(
    tag: str, command: Sequence[str], environment: dict[str, str] | None = None, order: bytes | None = None
) -> Child:
    """`order`: what its standard input begins with, which then stays open as long as we live."""
    # Pipes of our own: with subprocess.PIPE, Process.wait waits until nobody holds the other end any more, and what a
    # script left behind in another session may hold it for ever.
    (stdout, child_stdout), (stderr, child_stderr) = os.pipe(), os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=subprocess.DEVNULL if order is None else subprocess.PIPE,
            stdout=child_stdout,
            stderr=child_stderr,
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
        )
    finally:
        os.close(child_stdout)
        os.close(child_stderr)
    if process.stdin is not None:
        process.stdin.write(order or b"")
    return Child(tag, process, await _stream(stdout), await _stream(stderr))


async def _forward(child: Child, stream: asyncio.StreamReader, output: TaggedOutput, keep: bool) -> None:
    splitter = LineSplitter()
    while True:
        await asyncio.sleep(0)  # read() doesn't wait while there is data: signals and other processes have their turn
        data = await stream.read(READ_BYTES)
        for is_over, text in splitter.feed(data, final=not data):
            if is_over and keep:
                child.tail.append(text)
            if not output.is_read:
                continue
            try:
                (output.line if is_over else output.refresh)(child.tag, text)
            except (OSError, SystemExit):  # the latter from rich: nobody reads our output any more
                output.is_read = False
                os.kill(os.getpid(), signal.SIGPIPE)
        if not data:
            return


def _follow(child: Child, output: TaggedOutput) -> None:
    child.readers = [
        asyncio.create_task(_forward(child, child.stdout, output, keep=False)),
        asyncio.create_task(_forward(child, child.stderr, output, keep=True)),
    ]


async def _start_switch(output: TaggedOutput, own_address: str) -> tuple[Child, str]:
    command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", address_text(own_address, 0)]
    child = await _start("switch", command, {**os.environ, "PYTHONUNBUFFERED": "1"})
    first = (await child.stdout.readline()).decode().strip()
    _follow(child, output)
    if not first.startswith("listening on "):
        await asyncio.wait(child.readers, timeout=TERMINATE_S)
        raise ConfigError("The embedded switch didn't start; its messages are above.")
    return child, first.removeprefix("listening on ")


def _own_address(machine: str) -> str:
    """Ours, as that machine knows it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(machine.rpartition("@")[2], 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"Which address of this machine {machine} can reach isn't known ({error}): start a switch, and say where "
            "it is (--switch HOST:PORT)."
        ) from error


@dataclass(frozen=True)
class Run:
    """What all ranks of a run share.

    Attributes:
      arguments: of the Python interpreter.
      machines: where the ranks are started over ssh, in their order; none: here.
      hosts: how many ranks.
    """

    arguments: Sequence[str]
    machines: Sequence[str]
    hosts: int
    devices: int
    switch: str
    job: str
    console: Console

    async def start(self, rank: int) -> Child:
        tag = f"rank {rank}"
        ours = _environment(rank, self.hosts, self.devices, self.switch, self.job, self.console)
        if not self.machines:
            environment = {"JAX_PLATFORMS": "cpu", **os.environ, **ours}
            return await _start(tag, [sys.executable, *self.arguments], environment)
        taken = {name: value for name, value in os.environ.items() if name.startswith(HANDED_OVER)}
        order = remote.order(self.arguments, {"JAX_PLATFORMS": "cpu", **taken, **ours}, os.getcwd())
        there = shlex.join([sys.executable, "-P", "-m", "jax_passing.commands.remote"])
        try:
            return await _start(tag, [*SSH, self.machines[rank], there], order=order)
        except FileNotFoundError as error:
            raise ConfigError(f"Other machines are reached by ssh, and there is none here: {error}.") from error


def _environment(rank: int, hosts: int, devices: int, switch: str, job: str, console: Console) -> dict[str, str]:
    ours = {
        PREFIX + "SWITCH": switch,
        PREFIX + "JOB": job,
        PREFIX + "RANK": str(rank),
        PREFIX + "WORLD_SIZE": str(hosts),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONUNBUFFERED": "1",
        # Loops over sets are then in the same order on all hosts.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
    }
    if console.is_terminal:
        # Rich then draws its bars into our pipe, which shows them as rank 0's last line.
        interactive = str(int(rank == 0))
        ours |= {
            "TTY_COMPATIBLE": "1",
            "TTY_INTERACTIVE": interactive,
            "COLUMNS": str(console.width - len("[rank 00] ")),
        }
    return ours


async def _stop(children: Iterable[Child], impatient: asyncio.Event) -> None:
    """SIGTERM, then SIGKILL after a while or when `impatient` is set. Whole groups: workers of a script too."""
    children = list(children)
    for child in children:
        child.signal_group(signal.SIGTERM)
    ended = asyncio.create_task(_ended(children))
    hurry = asyncio.create_task(impatient.wait())
    await asyncio.wait([ended, hurry], timeout=TERMINATE_S, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    for child in children:
        child.signal_group(signal.SIGKILL)
    await ended


async def _ended(children: Iterable[Child]) -> bool:
    for child in children:
        await child.process.wait()
    return True


async def _await_ranks(
    ranks: list[Child], signalled: asyncio.Event, start_again: Callable[[Child], Awaitable[Child | None]]
) -> list[Child]:
    """Waits until all ranks are done, one failed, or we were signalled. Returns the failed ones in their order.

    `start_again`: what takes the place of a rank that failed; None if it isn't to be started again."""
    failed: list[Child] = []
    waits = {asyncio.create_task(child.process.wait()): child for child in ranks}
    interrupt = asyncio.create_task(signalled.wait())
    pending: set[asyncio.Task[int]] = set(waits)
    until: float | None = None
    loop = asyncio.get_running_loop()
    while pending and not signalled.is_set():
        timeout = None if until is None else until - loop.time()
        if timeout is not None and timeout <= 0:
            break
        done, _ = await asyncio.wait([*pending, interrupt], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in pending if task in done]:
            pending.discard(task)
            if task.result() == 0:
                continue
            if not failed and (again := await start_again(waits[task])) is not None:
                task = asyncio.create_task(again.process.wait())
                waits[task] = again
                pending.add(task)
            else:
                failed.append(waits[task])
                until = until or loop.time() + SETTLE_S
    for task in [*pending, interrupt]:
        task.cancel()
    return failed


def _culprit(failed: list[Child]) -> Child:
    """The rank to blame: the first to exit, unless it only reports that it lost another."""
    lost_others = "HostLostError: "  # typed, or in the text of an error of JAX
    return next((child for child in failed if not any(lost_others in line for line in child.tail)), failed[0])


def _job(switch: str | None) -> str:
    """A name of this run alone. A key belongs to a name, so with one that is given, too. Raises ConfigError."""
    if not os.environ.get(PREFIX + "KEY_FILE"):
        return f"run-{uuid.uuid4().hex[:8]}"
    job = os.environ.get(PREFIX + "JOB")
    if switch is None or not job:
        raise ConfigError(
            f"{PREFIX}KEY_FILE is set: the hosts have the key of a job at a switch with a key. Name that switch "
            f"(--switch HOST:PORT) and that job ({PREFIX}JOB)."
        )
    return job


async def _run(
    arguments: Sequence[str], machines: Sequence[str], hosts: int, devices: int, switch: str | None, restarts: int
) -> int:
    job = _job(switch)
    console = Console(highlight=False)
    output = TaggedOutput(console)
    signalled, impatient = asyncio.Event(), asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        (impatient if signalled.is_set() else signalled).set()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    children: list[Child] = []
    try:
        if switch is None:
            own_address = _own_address(machines[0]) if machines else "127.0.0.1"
            child, switch = await _start_switch(output, own_address)
            children.append(child)
        run = Run(arguments, machines, hosts, devices, switch, job, console)
        ranks: list[Child] = []

        async def start(rank: int) -> Child:
            child = await run.start(rank)
            children.append(child)
            _follow(child, output)
            return child

        async def start_again(dead: Child) -> Child | None:
            nonlocal restarts
            if restarts == 0 or signalled.is_set():
                return None
            restarts -= 1
            dead.signal_group(signal.SIGKILL)  # what the script has left behind
            console.print(f"[bold]{dead.tag} ended ({_how(dead)}): started again, {restarts} more times[/bold]")
            rank = ranks.index(dead)
            ranks[rank] = await start(rank)
            return ranks[rank]

        for rank in range(hosts):
            ranks.append(await start(rank))
        failed = await _await_ranks(ranks, signalled, start_again)
        await _stop(ranks, impatient)
    finally:
        await _stop(children, impatient)
        readers = [reader for child in children for reader in child.readers]
        if readers:
            await asyncio.wait(readers, timeout=TERMINATE_S)
    if received:
        return 128 + received[0]
    if not failed:
        return 0
    culprit = _culprit(failed)
    unreachable = bool(machines) and culprit.process.returncode == SSH_FAILED
    return _report(culprit, console, machines[ranks.index(culprit)] if unreachable else None)


def _how(child: Child) -> str:
    code = child.process.returncode or 0
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _report(culprit: Child, console: Console, unreachable: str | None) -> int:
    """`unreachable`: the machine, if ssh failed."""
    code = culprit.process.returncode or 0
    what = f"{culprit.tag} failed first ({_how(culprit)})"
    if unreachable is not None:
        what = f"{culprit.tag} can't be started: ssh doesn't reach {unreachable}, or lost it (exit code {code})"
    console.print(f"[bold red]{what}; all others were stopped.[/bold red]")
    for line in culprit.traceback():
        console.print(f"  {line}", markup=False, soft_wrap=True)
    return code if code > 0 else 128 - code


def _machines(hosts: str) -> tuple[int, list[str]]:
    """How many ranks, and the machines that they are started on; none: this one."""
    machines: list[str] = [] if hosts.strip().isdecimal() else [name.strip() for name in hosts.split(",")]
    count = len(machines) or int(hosts)
    for name in machines:
        if not re.fullmatch(r"[\w.@:%\[\]][\w.@:%\[\]-]*", name):
            raise ConfigError(f"Bad value {hosts!r} of --hosts: {name!r} is no name of a machine, nor a number.")
    if not 1 <= count <= HOSTS_MAX:
        raise ConfigError(f"Bad value {hosts!r} of --hosts: expected 1 to {HOSTS_MAX} hosts.")
    return count, machines


def run(
    arguments: Sequence[str], hosts: int | str, devices_per_host: int, switch: str | None, restarts: int = 0
) -> int:
    """Runs `python ARGUMENTS` once a host, and shows their output.

    Args:
      arguments: of the Python interpreter.
      hosts: number of processes; or names of machines with commas, which ssh knows, for a process on each.
      devices_per_host: CPU devices that JAX shows in each.
      switch: "host:port" of a running one, or of several with commas; None starts one for this run.
      restarts: how many times in all a rank that fails is started again.

    Returns:
      An exit code: 0, that of the rank that failed first, or 128 + the signal that ended it.
    """
    if switch is not None:
        try:
            parse_switches(switch)
        except ValueError as error:
            raise ConfigError(f"Bad value {switch!r} of --switch: {error}.") from error
    count, machines = _machines(str(hosts))
    return asyncio.run(_run(arguments, machines, count, devices_per_host, switch, restarts))
