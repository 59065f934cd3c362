"""`jax-passing drain` and `jax-passing end`: an operator says what a switch admits, and what ends."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jax_passing.protocol.control_messages import Command

WAIT_S = 2.0

Switch = Annotated[
    str, typer.Argument(metavar="HOST:PORT,...", help="Tell this switch, or several.", show_default=False)
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Prove by the switch's own key that you may; to end a job, that job's key is enough.",
        show_default="none: on the switch's machine its user and root may",
    ),
]
Why = Annotated[str, typer.Option(help="Say why, to those whom it concerns.", show_default=False)]


def drain(
    switch: Switch,
    undo: Annotated[bool, typer.Option("--undo", help="Admit new jobs again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no job is left, however long.")] = False,
    reason: Why = "",
    key_file: KeyFile = None,
) -> None:
    """Let a switch admit no new jobs; those that run go on until they end, and may join again after a failure."""
    from jax_passing.errors import ConfigError
    from jax_passing.protocol import control_messages as messages

    if undo and wait:
        raise ConfigError("--undo and --wait contradict each other.")
    command = messages.Command(messages.PROTOCOL_VERSION, "undrain" if undo else "drain", reason=reason)
    left = _tell(switch, command, key_file, None)
    while wait and left:
        time.sleep(WAIT_S)
        left = _tell(switch, command, key_file, None, is_quiet=True)
    if not undo:
        jobs = "1 job is" if left == 1 else f"{left} jobs are" if left else "No jobs are"
        typer.echo(f"{jobs} left.")


def end(
    switch: Switch,
    job: Annotated[str, typer.Argument(metavar="JOB", help="End the job of this name.", show_default=False)],
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Put only this rank out. An elastic job goes on without it.", show_default=False),
    ] = None,
    reason: Why = "",
    key_file: KeyFile = None,
) -> None:
    """End a job: its hosts raise EndedByOperatorError, which names the switch and the reason."""
    from jax_passing.protocol import control_messages as messages

    command = messages.Command(messages.PROTOCOL_VERSION, "end", job=job, rank=rank, reason=reason)
    _tell(switch, command, key_file, job, one_is_enough=True)  # it ends at all switches over which it is spread


def _tell(
    switches: str,
    command: "Command",
    key_file: Path | None,
    job: str | None,
    *,
    is_quiet: bool = False,
    one_is_enough: bool = False,
) -> int:
    """Tells all of them, and returns how many jobs are left. Raises the first problem, once all have been told."""
    import msgspec

    from jax_passing import config
    from jax_passing.commands.operate.telling import tell
    from jax_passing.errors import ConfigError, PassingError
    from jax_passing.protocol import control_messages as messages

    try:
        messages.decode_from_member(messages.encode(command))
    except msgspec.ValidationError as error:
        raise ConfigError(f"The switch wouldn't understand that: {error}.") from None
    try:
        addresses = config.parse_switches(switches)
    except ValueError as error:
        raise ConfigError(f"{switches!r}: {error}.") from error
    left, told, problem = 0, 0, None
    for address in addresses:
        try:
            done = tell(address, command, key_file, job)
        except PassingError as error:
            problem = problem or error
            continue
        left, told = left + done.jobs, told + 1
        if not is_quiet:
            typer.echo(done.text)
    if problem is not None and not (told and one_is_enough):
        raise problem
    return left
