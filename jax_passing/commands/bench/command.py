"""`jax-passing bench`: how long sums take, on several hosts of this machine or as one host of a job."""

import os
from pathlib import Path
from typing import Annotated

import typer

from jax_passing.commands.launch import SwitchOption
from jax_passing.commands.quantities import parse_bytes, parse_dtype
from jax_passing.config import PREFIX
from jax_passing.errors import ConfigError


def bench(
    hosts: Annotated[
        int | None, typer.Option("--hosts", min=1, max=64, help="Start this number of hosts on this machine.")
    ] = None,
    devices_per_host: Annotated[
        int | None,
        typer.Option("--devices-per-host", "-g", min=1, help="The CPU devices of each host.", show_default="1"),
    ] = None,
    switch: SwitchOption = None,
    min_bytes: Annotated[
        int, typer.Option("--min-bytes", "-b", parser=parse_bytes, metavar="BYTES", help="Begin with this size.")
    ] = "1K",  # type: ignore[assignment]
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", "-e", parser=parse_bytes, metavar="BYTES", help="End with this size at most.")
    ] = "64M",  # type: ignore[assignment]
    factor: Annotated[
        int, typer.Option("--factor", "-f", min=2, help="Multiply each size by this to get the next.")
    ] = 4,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", "-d", parser=parse_dtype, metavar="DTYPE", help="Sum elements of this dtype (float32 or f32)."
        ),
    ] = "float32",
    iterations: Annotated[int, typer.Option("--iterations", "-n", min=1, help="The timed sums of each size.")] = 10,
    warmup: Annotated[
        int, typer.Option("--warmup", "-w", min=0, help="The sums before these, which aren't timed.")
    ] = 3,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file too.")] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="Say what is faster or slower than in this file of --json.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rows as a PNG. This needs matplotlib.")] = None,
) -> None:
    """Measure psum over a sweep of sizes; print a table as nccl-tests does.

    With --hosts (or without --switch): hosts on this machine. Else this process is one host of a job, whose name, rank
    and world size are found as jax_passing.init finds them: start it on all hosts with their launcher.

    Short options are those of nccl-tests. So are sizes: K, M and G are powers of 1024, also if written KB or KiB.
    """
    from jax_passing.commands.bench import comparison, table
    from jax_passing.commands.launch import launcher

    if min_bytes > max_bytes:
        raise ConfigError(f"--min-bytes ({min_bytes}) is above --max-bytes ({max_bytes}).")
    if plot is not None:
        table.require_matplotlib()
        if plot.suffix != ".png":
            raise ConfigError(f"Can't draw {plot}: the plot is a PNG, so its name must end in .png.")
    for path in (json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"Can't write {path}: {path.absolute().parent} is no folder.")
        if path is not None and path.is_dir():
            raise ConfigError(f"Can't write {path}: it is a folder. Name a file in it.")
    if hosts is None and (switch is not None or os.environ.get(PREFIX + "SWITCH")):
        if devices_per_host is not None:
            os.environ["JAX_NUM_CPU_DEVICES"] = str(devices_per_host)  # before jax is loaded
        from jax_passing.commands.bench import sweep

        options = sweep.Options(min_bytes, max_bytes, factor, dtype, iterations, warmup)
        raise typer.Exit(sweep.run(options, switch, json, plot, compare))

    if compare is not None:
        comparison.read(compare)  # before the measurement, if it can't be read
    flags = {"min-bytes": min_bytes, "max-bytes": max_bytes, "factor": factor, "dtype": dtype}
    flags |= {"iterations": iterations, "warmup": warmup, "json": json, "compare": compare, "plot": plot}
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    command = ["-P", "-m", "jax_passing", "bench", *given]
    raise typer.Exit(launcher.run(command, hosts or 2, devices_per_host or 1, switch))
