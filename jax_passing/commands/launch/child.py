"""The processes of `jax-passing run`: how they are started, what becomes of their output, how they are stopped."""

import asyncio
import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from jax_passing.commands.terminal import LineSplitter, TaggedOutput

TERMINATE_S = 5.0  # between SIGTERM and SIGKILL, for processes that have nothing to save
# Between a user's signal and SIGKILL, for scripts that save something. Slurm and Kubernetes kill the launcher 30 s
# after a signal. Before that it also stops the switch and reads the last output, each for up to TERMINATE_S.
SAVE_S = 18.0
TAIL_LINES = 200
READ_BYTES = 4096  # bounds the lines at once; rich takes some 50 us for each
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: after a fork it might deadlock


def die_with(parent: int) -> Callable[[], None]:
    """Returns a preexec_fn for Popen: the child dies when the process `parent` (a pid) does, even by SIGKILL."""

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

    def how_it_ended(self) -> str:
        """Says in words how the process ended."""
        code = self.process.returncode or 0
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    def traceback(self) -> list[str]:
        starts = [index for index, line in enumerate(self.tail) if line.startswith("Traceback (most recent call last)")]
        return list(self.tail)[starts[-1] if starts else -20 :]


async def _stream(descriptor: int) -> asyncio.StreamReader:
    stream = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(stream)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(descriptor, "rb", buffering=0))
    return stream


async def start(
    tag: str, command: Sequence[str], environment: dict[str, str] | None = None, order: bytes | None = None
) -> Child:
    """Starts a process. `tag`: stands before each line of its output. `order`: the first bytes of its standard
    input, which then stays open as long as we live."""
    # Pipes of our own: with subprocess.PIPE, Process.wait waits until nobody holds the other end any more, which a
    # process that a script left behind in another session may do for ever.
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


def follow(child: Child, output: TaggedOutput) -> None:
    """Shows what the child prints from now on."""
    child.readers = [
        asyncio.create_task(_forward(child, child.stdout, output, keep=False)),
        asyncio.create_task(_forward(child, child.stderr, output, keep=True)),
    ]


async def stop(
    children: Iterable[Child],
    impatient: asyncio.Event,
    number: signal.Signals = signal.SIGTERM,
    within_s: float = TERMINATE_S,
) -> None:
    """Sends the signal to whole process groups, and so to a script's workers, too; then SIGKILL, after `within_s` or
    when `impatient` is set."""
    children = list(children)
    for child in children:
        child.signal_group(number)
    ended = asyncio.create_task(_ended(children))
    hurry = asyncio.create_task(impatient.wait())
    await asyncio.wait([ended, hurry], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    for child in children:
        child.signal_group(signal.SIGKILL)
    await ended


async def _ended(children: Iterable[Child]) -> bool:
    for child in children:
        await child.process.wait()
    return True
