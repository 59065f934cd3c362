"""`jax-passing key`: keys for switches and jobs."""

from pathlib import Path
from typing import Annotated

import typer


def key(
    switch_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Derive the key of a job from the switch's key in this file.",
            show_default="a new key for a switch",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="With --switch-key, the job's name.")] = None,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Make a key for the hosts of a job, which no switch is told.")
    ] = False,
) -> None:
    """Print a new key for a switch, the key of a job at a switch that has one, or a key for confidential sums.

    Write it to a file that only its owner can read (umask 077).
    """
    from jax_passing import job_names
    from jax_passing.errors import ConfigError
    from jax_passing.protocol import keys, secure_channel

    if (switch_key is None) != (job is None):
        raise ConfigError("--switch-key and --job belong together: a job's key is derived from its switch's.")
    if hosts and switch_key is not None:
        raise ConfigError("--hosts makes a key that has nothing to do with the switch's: leave out --switch-key.")
    if hosts:
        typer.echo(keys.key_line(keys.HOSTS, keys.new_key()), nl=False)
        return
    if switch_key is None or job is None:
        typer.echo(keys.key_line(keys.SWITCH, keys.new_key()), nl=False)
        return
    try:
        job_names.check(job)
    except ValueError as error:
        raise ConfigError(f"--job: {error}.") from error
    secure_channel.server_name(job)  # raises ConfigError if no host could tell the switch this name
    typer.echo(keys.key_line(keys.JOB, keys.job_key(keys.read_key(switch_key, keys.SWITCH), job)), nl=False)
