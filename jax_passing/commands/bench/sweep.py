"""`jax-passing bench` on one host: how long jitted psum calls take, size after size."""

import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import track

import jax_passing
from jax_passing.commands.bench import comparison, table
from jax_passing.commands.bench.table import Row

# Prime, hence no multiple or divisor of a packet or a block: a chunk at a wrong offset differs.
_PATTERN_PERIOD = 251


@dataclass(frozen=True)
class Options:
    """Sizes from `min_bytes` to `max_bytes`, each `factor` times the last; `iterations` are timed after `warmup`."""

    min_bytes: int
    max_bytes: int
    factor: int
    dtype: str
    iterations: int
    warmup: int

    def counts(self) -> Iterator[int]:
        """Yields how many elements each size has, at least one."""
        size_bytes = self.min_bytes
        while size_bytes <= self.max_bytes:
            yield max(1, size_bytes // _dtype(self.dtype).itemsize)
            size_bytes *= self.factor


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(jax.numpy.dtype(name))


def contribution(device: int, count: int, dtype: str) -> np.ndarray:
    """Returns the addend of device number `device` of all hosts: integers from -2 to 2. Sums of 128 devices are exact
    in every dtype (8 significant bits of bfloat16; unsigned integers wrap). Shape (count,)."""
    pattern = (np.arange(_PATTERN_PERIOD) * 89 + device * 53) % _PATTERN_PERIOD % 5 - 2
    return np.resize(pattern.astype(_dtype(dtype)), count)


def expected_sum(devices: int, count: int, dtype: str) -> np.ndarray:
    """Returns the sum of all devices' contributions, computed in 64-bit integers. Shape (count,)."""
    total = sum(contribution(device, _PATTERN_PERIOD, "int64") for device in range(devices))
    return np.resize(np.asarray(total).astype(_dtype(dtype)), count)


def count_wrong(out: jax.Array, expected: np.ndarray) -> int:
    """Counts the elements that differ from `expected`, over the shards (1, count) of all local devices."""
    return sum(int(np.count_nonzero(np.asarray(shard.data)[0] != expected)) for shard in out.addressable_shards)


class Bench:
    """Holds the jitted functions of a session, over a mesh of this process's devices."""

    def __init__(self, session: jax_passing.Session, options: Options):
        self._rank, self._hosts, self._options = session.rank, session.world_size, options
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        self._devices = mesh.size
        self._sharding = NamedSharding(mesh, P("d"))

        def over_devices(x: jax.Array) -> jax.Array:
            return jax_passing.psum(x, "d")

        step = jax.shard_map(over_devices, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        self._steps = {False: jax.jit(step), True: jax.jit(step, donate_argnums=0)}
        self._total = jax.jit(step)  # of another program: a barrier, and counts of wrong elements
        self._copy = jax.jit(jax.numpy.copy)

    def _sum_of_hosts(self, value: int) -> int:
        mine = np.zeros((self._devices, 1), np.int32)
        mine[0] = value
        return int(np.asarray(self._total(jax.device_put(mine, self._sharding)).addressable_data(0))[0, 0])

    def _input(self, count: int) -> jax.Array:
        first = self._rank * self._devices

        rows = [contribution(first + device, count, self._options.dtype) for device in range(self._devices)]
        return jax.device_put(np.stack(rows), self._sharding)

    def measure(self, count: int, in_place: bool) -> Row:
        """Times one size. Every result is checked, on every device of every host."""
        x = self._input(count).block_until_ready()
        expected = expected_sum(self._hosts * self._devices, count, self._options.dtype)
        times_s, cpu_s, wrong = [], 0.0, 0
        for iteration in range(-self._options.warmup, self._options.iterations):
            argument = self._copy(x).block_until_ready() if in_place else x
            self._sum_of_hosts(0)  # nobody's time includes another one's check
            start_cpu_s, start_s = time.process_time(), time.perf_counter()
            out = self._steps[in_place](argument).block_until_ready()
            end_s, end_cpu_s = time.perf_counter(), time.process_time()
            if iteration >= 0:
                times_s.append(end_s - start_s)
                cpu_s += (end_cpu_s - start_cpu_s) / self._options.iterations
            wrong += count_wrong(out, expected)
        return Row(
            system="jax_passing",
            hosts=self._hosts,
            devices_per_host=self._devices,
            size_bytes=count * expected.itemsize,
            count=count,
            dtype=self._options.dtype,
            times_s=tuple(times_s),
            # The network carries this count too. This host's own stays, should that sum be wrong as well.
            wrong=max(wrong, self._sum_of_hosts(wrong)),
            in_place=in_place,
            cpu_s=cpu_s,
        )


def run(options: Options, switch: str | None, json: Path | None, plot: Path | None, compare: Path | None) -> int:
    """Joins as `jax_passing.init` does, measures all sizes, and prints on rank 0. `compare`: a file of an earlier
    measurement.

    Returns: an exit code: 1 if an element was wrong.

    Raises: the errors of `init` and of sums.
    """
    if _dtype(options.dtype).itemsize // (2 if options.dtype.startswith("complex") else 1) == 8:
        jax.config.update("jax_enable_x64", True)
    with jax_passing.init(switch=switch, axis_name="d") as session:
        old = comparison.read(compare) if compare is not None and session.rank == 0 else []
        bench = Bench(session, options)
        cases = [(count, in_place) for count in options.counts() for in_place in (False, True)]
        console = Console(stderr=True)
        shown = track(cases, "sums", console=console, transient=True, disable=session.rank != 0)
        rows = [bench.measure(count, in_place) for count, in_place in shown]
        context = {
            "options": asdict(options),
            "switch": session.settings.switch,
            "jax": jax.__version__,
            "python": sys.version.split()[0],
            "machine": f"{platform.node()} {platform.machine()}",
            "stats": session.stats(),
        }
    if session.rank != 0:
        return 0
    if json is not None:
        table.write_json(json, rows, **context)
    _show(rows)
    if compare is not None:
        _show_comparison(comparison.compare(old, rows), compare)
    if plot is not None:
        table.plot(rows, plot, title=_title(rows[0]))
    return 1 if any(row.wrong for row in rows) else 0


def _title(row: Row) -> str:
    return f"psum of {row.dtype} over {row.hosts} hosts x {row.devices_per_host} devices"


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)  # a file or a pipe needn't wrap the table


def _show(rows: list[Row]) -> None:
    console = _console()
    console.print(table.table(rows, title=_title(rows[0])))
    console.print(table.NOTE, "In place: the argument was donated.", highlight=False)


def _show_comparison(compared: list[comparison.Comparison], old: Path) -> None:
    console = _console()
    if not compared:
        console.print(f"{old} has none of these sums to compare with.", highlight=False)
        return
    console.print(comparison.table(compared))
    console.print(comparison.NOTE, highlight=False)
