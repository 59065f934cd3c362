"""`jax-passing run`: several hosts, one process each, here or over ssh, and a switch if none is given."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

from rich.console import Console

from jax_passing.commands.launch.child import SAVE_S, TERMINATE_S, Child, follow, stop
from jax_passing.commands.launch.starting import Coordinator, Run, is_here, job_of_run, machines_of, start_switch
from jax_passing.commands.terminal import TaggedOutput
from jax_passing.config import parse_switches
from jax_passing.errors import ConfigError
from jax_passing.for_jax import environment

SETTLE_S = 1.0  # how long other ranks may fail too before the culprit is named
SSH_FAILED = 255  # ssh's own exit code; else that of the remote command
NO_PYTHON = 127  # a shell's exit code for a command that isn't there


async def _await_ranks(
    ranks: list[Child], signalled: asyncio.Event, start_again: Callable[[Child], Awaitable[Child | None]]
) -> list[Child]:
    """Waits until all ranks are done, one failed, or we were signalled. Returns the failed ones in their order.

    `start_again`: starts a replacement of a rank that failed; None if there is to be none."""
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
    """Returns the rank to blame: the first to exit, unless it only reports that it lost another."""
    lost_others = "HostLostError: "  # typed, or in the text of an error of JAX
    return next((child for child in failed if not any(lost_others in line for line in child.tail)), failed[0])


async def _run(
    arguments: Sequence[str],
    machines: Sequence[str],
    hosts: int,
    devices: int,
    switch: str | None,
    restarts: int,
    for_jax: bool,
) -> int:
    job, coordinator = job_of_run(switch), Coordinator(machines)
    console = Console(highlight=False)
    output = TaggedOutput(console)
    signalled, impatient = asyncio.Event(), asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        if number == signal.SIGPIPE and output.is_read:
            return  # ssh has ended before it took its order, which its exit code says
        # The same Ctrl-C may end the reader of our output (SIGPIPE): that is no second signal of the user's.
        (impatient if signalled.is_set() and number != signal.SIGPIPE else signalled).set()
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    children: list[Child] = []
    try:
        if switch is None:
            child, switch = await start_switch(output, machines)
            children.append(child)
            output.line(child.tag, f"listens at {switch} (`jax-passing status {switch}` shows who is late)")
        noun = "host" if restarts else "rank"
        run = Run(arguments, machines, hosts, devices, switch, job, for_jax, noun, coordinator.variables, console)
        ranks: list[Child] = []

        async def start(rank: int) -> Child:
            child = await run.start(rank)
            children.append(child)
            follow(child, output)
            return child

        async def start_again(dead: Child) -> Child | None:
            nonlocal restarts
            if restarts == 0 or signalled.is_set():
                return None
            restarts -= 1
            dead.signal_group(signal.SIGKILL)  # processes that the script has left behind
            console.print(
                f"[bold]{dead.tag} ended ({dead.how_it_ended()}): started again, {restarts} more times[/bold]"
            )
            rank = ranks.index(dead)
            ranks[rank] = await start(rank)
            return ranks[rank]

        for rank in range(hosts):
            ranks.append(await start(rank))
        failed = await _await_ranks(ranks, signalled, start_again)
        # By Ctrl-C a script may save something, and its session tells the others; SIGTERM would end it without a word.
        number = signal.SIGINT if received[:1] == [signal.SIGINT] else signal.SIGTERM
        await stop(ranks, impatient, number, SAVE_S if received else TERMINATE_S)
    finally:
        await stop(children, impatient)
        coordinator.close()
        readers = [reader for child in children for reader in child.readers]
        if readers:
            await asyncio.wait(readers, timeout=TERMINATE_S)
    if received:
        return 128 + received[0]
    if not failed:
        return 0
    culprit = _culprit(failed)
    machine = machines[ranks.index(culprit)] if machines else None
    return _report(culprit, console, None if machine is None or is_here(machine) else machine)


def _report(culprit: Child, console: Console, machine: str | None) -> int:
    """Tells the user what happened, and returns the exit code. `machine`: where the culprit ran, if by ssh."""
    code = culprit.process.returncode or 0
    what, advice = f"{culprit.tag} failed first ({culprit.how_it_ended()})", None
    if machine is not None and code == SSH_FAILED:
        what = f"{culprit.tag} can't be started: ssh doesn't reach {machine}, or lost it (exit code {code})"
        advice = f"`ssh {machine} true` must work without a password or a question: try that by itself."
    elif machine is not None and code == NO_PYTHON and any(sys.executable in line for line in culprit.tail):
        what = f"{culprit.tag} can't be started: there is no {sys.executable} on {machine} (exit code {code})"
        advice = "Install the same environment under the same path there; the script lies under the same path, too."
    console.print(f"[bold red]{what}; all others were stopped.[/bold red]")
    for line in [*culprit.traceback(), *([advice] if advice else [])]:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    return code if code > 0 else 128 - code


def run(
    arguments: Sequence[str],
    hosts: int | str,
    devices_per_host: int,
    switch: str | None,
    restarts: int = 0,
    for_jax: bool = False,
) -> int:
    """Runs `python ARGUMENTS` once a host, and shows their output.

    Args:
      arguments: of the Python interpreter.
      hosts: number of processes; or names of machines with commas, which ssh knows, for a process on each.
      devices_per_host: CPU devices that JAX shows in each.
      switch: "host:port" of a running one, or of several with commas; None starts one for this run.
      restarts: how many times in all a rank that fails is started again.
      for_jax: has JAX's own collectives go through the switch.

    Returns:
      An exit code: 0, that of the rank that failed first, or 128 + the signal that ended it.
    """
    if switch is not None:
        try:
            parse_switches(switch)
        except ValueError as error:
            raise ConfigError(f"Bad value {switch!r} of --switch: {error}.") from error
    if for_jax and (why := environment.conflict(os.environ)) is not None:
        raise ConfigError(f"--for-jax takes the place of an MPI library, but {why}. Unset that variable.")
    count, machines = machines_of(str(hosts))
    return asyncio.run(_run(arguments, machines, count, devices_per_host, switch, restarts, for_jax))
