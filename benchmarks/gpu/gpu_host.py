"""One host of a part of benchmarks/gpu/gpu.py: it uses one device, and rank 0 writes what was found.

    jax-passing run --hosts 2 benchmarks/gpu/gpu_host.py sums --platforms cuda,cpu --result result.json

Rank r takes the r-th platform. Hosts of platform cuda share a card, as far as there are more of them than cards.
"""

import argparse
import faulthandler
import gc
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_trace
import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.psum import SUPPORTED_DTYPES

EXAMPLES = Path(__file__).parents[2] / "examples"
# Around the limits of packets, blocks (1440 elements) and segments; the last one is cut for copies, too.
COUNTS = (1, 255, 1440, 1441, 65_537, 2**20 + 7)
FLOATS = {  # dtype: (significant bits, bits that a lane has for one element)
    "bfloat16": (8, 16),
    "float16": (11, 31),
    "float32": (24, 31),
    "float64": (53, 62),
}
CALLS = 1000
ROUNDS = 15
COPY_MEBIBYTES = (1, 16, 64, 256)
MEMORY_MEBIBYTES = 256
THREAD_S = 1.0  # between the threads of a host
STEPS, SETTLED = 10_000, 1_000
GROWING = ("resident_bytes", "device_bytes", "descriptors", "threads")


@dataclass(frozen=True)
class Host:
    """
    Attributes:
      mesh: of its one device.
      folder: for what it leaves beside its result.
    """

    rank: int
    world_size: int
    mesh: Any
    on_gpu: bool
    folder: Path

    def split(self) -> Any:
        return NamedSharding(self.mesh, P("d"))


def summing(host: Host, operation: str = "psum", donated: bool = True) -> Any:
    """A jitted sum (or mean) of a tree over all hosts, whose result can be summed again."""

    def body(tree: Any) -> Any:
        return jax.lax.pcast(getattr(jax_passing, operation)(tree, "d"), "d", to="varying")

    mapped = jax.shard_map(body, mesh=host.mesh, in_specs=P("d"), out_specs=P("d"))
    return jax.jit(mapped, donate_argnums=(0,) if donated else ())


# --- correctness


def drawn(kind: str, dtype: Any, count: int, rank: int) -> Any:
    """Draws a host's addend from its rank, so that every host can draw those of the others, too."""
    rng = np.random.default_rng((rank, count, zlib.crc32(f"{kind} {dtype}".encode())))
    if kind == "small integers":  # their sums are exact in every dtype
        values = rng.integers(*((0, 2) if dtype.kind == "b" else (-20, 21)), count)
        if dtype.kind == "c":
            values = values + 1j * rng.integers(-20, 21, count)
        return values.astype(dtype)
    if dtype.kind in "iu":
        return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    values = rng.standard_normal(count)
    if kind == "with NaN and infinities":
        for special in (np.nan, np.inf, -np.inf):
            values[rng.integers(0, count, count // 1000 + 1)] = special
    return values.astype(dtype)


def kinds_of(name: str) -> list[str]:
    if name in FLOATS:
        return ["small integers", "normal", "with NaN and infinities"]
    return ["small integers"] + ["any integers"] * name.startswith(("int", "uint"))


def count_wrong(got: Any, parts: list[Any], name: str, kind: str) -> int:
    """Elements that aren't the exact sum, or farther from it than docs/fixed_point.md allows."""
    if name not in FLOATS or kind == "small integers":
        wide = parts[0].dtype if name not in FLOATS and name != "bool" else np.dtype(np.int32)
        if name in FLOATS:
            wide = np.dtype(np.float64)
        exact = np.add.reduce([part.astype(wide) for part in parts], dtype=wide)
        return int(np.count_nonzero(got.astype(wide) != exact))
    with np.errstate(invalid="ignore"):
        exact = np.add.reduce([part.astype(np.float64).astype(np.longdouble) for part in parts])
        got = got.astype(np.float64).astype(np.longdouble)
        finite = np.isfinite(exact)
        wrong = np.count_nonzero(~finite & (got != exact) & ~(np.isnan(got) & np.isnan(exact)))
        significant, lane = FLOATS[name]
        hosts = len(parts)
        headroom = (hosts - 1).bit_length() * (2 if name == "float64" else 1)
        for start in range(0, len(got), 1440):
            block = slice(start, start + 1440)
            magnitudes = np.abs(np.array([part[block].astype(np.float64) for part in parts]))
            largest = magnitudes.max(initial=0, where=np.isfinite(magnitudes))
            unit = hosts * 2.0 ** (int(np.frexp(largest)[1]) - lane + headroom)
            bound = unit + (np.abs(exact[block]) + unit) * 2.0**-significant
            wrong += np.count_nonzero(finite[block] & ~(np.abs(got[block] - exact[block]) <= bound))
    return int(wrong)


def sums(host: Host) -> Any:
    """Every dtype, sizes around all limits, against numpy, and a digest of the results' bits."""
    jax.config.update("jax_enable_x64", True)
    step, rows = summing(host, donated=False), []
    for name in SUPPORTED_DTYPES:
        dtype = np.dtype(jnp.dtype(name))
        cases = [(kind, count) for kind in kinds_of(name) for count in COUNTS]
        totals = step([drawn(kind, dtype, count, host.rank) for kind, count in cases])
        totals = dict(zip(cases, map(np.asarray, totals), strict=True))
        for kind in kinds_of(name):
            wrong, digest = 0, hashlib.sha256()
            for count in COUNTS:
                parts = [drawn(kind, dtype, count, rank) for rank in range(host.world_size)]
                wrong += count_wrong(totals[kind, count], parts, name, kind)
                digest.update(totals[kind, count].tobytes())
            mine = int(digest.hexdigest()[:12], 16)
            # All hosts' wrong elements; and does one have other bits than this one?
            wrong, total = jax_passing.process_sum((wrong, mine))
            row = {"dtype": name, "kind": kind, "elements": sum(COUNTS), "digest": f"{mine:012x}"}
            rows.append({**row, "wrong": int(wrong), "hosts_differ": bool(total != host.world_size * mine)})
    return rows


def errors(host: Host) -> Any:
    """Hosts whose programs differ: the sum under way must fail by name, and the process goes on."""

    def body(x: Any) -> Any:  # what is summed is an array of the program's own
        return jax_passing.psum(jnp.sin(x), "d").sum()

    began, raised = time.perf_counter(), "nothing"
    before = held(host.mesh.devices.flat[0])["device_bytes"]
    try:
        with jax_passing.init(axis_name="d"):
            began = time.perf_counter()
            total = jax.jit(jax.shard_map(body, mesh=host.mesh, in_specs=P("d"), out_specs=P()))
            total(np.ones(2**22 + host.rank, np.float32)).block_until_ready()
    except jax_passing.errors.PassingError as error:
        raised = type(error).__name__
    raised_s = time.perf_counter() - began
    gc.collect()
    kept = held(host.mesh.devices.flat[0])["device_bytes"] - before
    computes = float(jax.jit(jnp.sum)(jax.device_put(np.ones(8, np.float32), host.split()))) == 8
    with jax_passing.init(axis_name="d"):
        right = bool((np.asarray(summing(host)(np.ones(1000, np.float32))) == host.world_size).all())
    found = {"raised": raised, "raised_s": raised_s, "device_computes": computes, "next_session_sums": right}
    return {**found, "device_bytes_kept": kept}


def threads(host: Host) -> Any:
    """Two threads sum on the one device, on each host in another order: neither must wait for the other's program."""

    def sum_in(stream: str) -> bool:
        with jax_passing.stream(stream):
            step, x = summing(host, donated=False), np.arange(1000, dtype=np.float32)
            return all((np.asarray(step(x)) == host.world_size * x).all() for _ in range(10))

    began, streams = time.perf_counter(), ["a", "b"] if host.rank % 2 == 0 else ["b", "a"]
    with ThreadPoolExecutor(len(streams)) as pool:
        found = []
        for stream in streams:
            found.append(pool.submit(sum_in, stream))
            time.sleep(THREAD_S)
        right = all(each.result() for each in found)
    return {"right": right, "seconds": time.perf_counter() - began}


def held(device: Any) -> dict[str, int]:
    """Returns what this process holds: memory, descriptors, threads."""
    process = psutil.Process()
    in_use = (device.memory_stats() or {}).get("bytes_in_use", 0)
    values = (process.memory_info().rss, in_use, process.num_fds(), process.num_threads())
    return dict(zip(GROWING, values, strict=True))


def growth(host: Host) -> Any:
    """Compares what the process holds after step 1,000 and after step 10,000. A step is the mean of a few leaves."""
    step, found = summing(host, "pmean"), {}
    tree = [jax.device_put(np.ones(count, np.float32), host.split()) for count in (1, 300, 16_384)]
    began = time.perf_counter()
    for number in range(1, STEPS + 1):
        tree = step(tree)
        if number in (SETTLED, STEPS):
            jax.block_until_ready(tree)
            found[number] = held(host.mesh.devices.flat[0])
    step_s = (time.perf_counter() - began) / STEPS
    return {"settled": found[SETTLED], "end": found[STEPS], "steps": STEPS, "step_s": step_s}


def memory(host: Host) -> Any:
    """Measures the device memory that a sum takes beyond the caller's donated buffer, by XLA's allocator."""
    device = host.mesh.devices.flat[0]
    if device.memory_stats() is None:
        return {"left_out": f"{device.device_kind} keeps no account of its memory"}
    x = jax.device_put(np.ones(MEMORY_MEBIBYTES * 2**18, np.float32), host.split()).block_until_ready()
    size_bytes = x.nbytes
    compiled = summing(host).lower(x).compile()  # what this takes isn't the sum's
    before = device.memory_stats()
    compiled(x).block_until_ready()
    after = device.memory_stats()
    return {
        "caller_bytes": size_bytes,
        "in_use_bytes": [stats["bytes_in_use"] for stats in (before, after)],
        "peak_bytes": [stats["peak_bytes_in_use"] for stats in (before, after)],
        # A peak never falls: if there was a higher one before, this is too much, never too little.
        "beyond_bytes": after["peak_bytes_in_use"] - size_bytes,
    }


# --- figures


def times_of(step: Callable[[Any], Any], x: Any, rounds: int) -> Iterator[tuple[float, float]]:
    """Yields each round's seconds (until dispatched, until done). A round's argument is the last one's result."""
    for _ in range(rounds):
        began = time.perf_counter()
        x = step(x)
        dispatched_s = time.perf_counter() - began
        jax.block_until_ready(x)
        yield dispatched_s, time.perf_counter() - began


def placed(host: Host, values: Any, dtype: str) -> Any:
    return jax.device_put(values.astype(jnp.dtype(dtype)), host.split()).block_until_ready()


def call(host: Host) -> Any:
    """Times a 1 KB sum beside the same program with a local operation in its place."""
    mapped = jax.shard_map(lambda x: x * 2, mesh=host.mesh, in_specs=P("d"), out_specs=P("d"))
    result: dict[str, Any] = {"calls": CALLS}
    for name, step in (("psum", summing(host)), ("local", jax.jit(mapped, donate_argnums=0))):
        x = placed(host, np.zeros(256), "float32")  # zeros stay what they are, however often they are summed
        dispatched_s, done_s = zip(*list(times_of(step, x, CALLS + 100))[100:], strict=True)
        result[name] = {"dispatch_us": statistics.median(dispatched_s) * 1e6, "us": statistics.median(done_s) * 1e6}
        result[name]["fastest_us"] = min(done_s) * 1e6
    return result


def copying(source: Any, there: Any) -> Callable[[Any], Any]:
    return lambda _: jax.device_put(source, there)


def copies(host: Host) -> Any:
    """A sum of one host: all that happens to the data but the network, beside copies from and to pinned memory."""
    rows = []
    pattern = np.random.default_rng(0).standard_normal(2**20)
    for dtype in ("float32", "bfloat16"):
        for mebibytes in COPY_MEBIBYTES:
            size_bytes = mebibytes * 2**20
            x = placed(host, np.resize(pattern, size_bytes // jnp.dtype(dtype).itemsize), dtype)
            row = {"dtype": dtype, "bytes": size_bytes}
            pinned = x.sharding.with_memory_kind("pinned_host")
            parked = jax.device_put(x, pinned).block_until_ready()
            # The sum is last, as it is given x.
            steps = {
                "copy_out_s": copying(x, pinned),
                "copy_in_s": copying(parked, x.sharding),
                "psum_s": summing(host),
            }
            for name, step in steps.items():
                row[name] = statistics.median(done_s for _, done_s in list(times_of(step, x, ROUNDS + 3))[3:])
            rows.append(row)
    return rows


def pipeline(host: Host) -> Any:
    """Times the C++ parts alone, without a network: copies, fixed point, copies back, and all of them at once."""
    root = Path(__file__).parents[2]
    sources = [path for room in ("wire", "net", "host", "cuda", "ffi") for path in root.glob(f"xla_ffi/{room}/**/*.cc")]
    sources = [path for path in sources if "handler" not in path.name]  # those need XLA's headers
    sources.append(root / "benchmarks" / "micro" / "gpu_pipeline_benchmark.cc")
    host.folder.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CXX", "g++"), "-std=c++20", "-O3", "-ffp-contract=off", "-pthread"]

    def compiled(source: Path) -> str:
        target = str(host.folder / f"{source.parent.name}_{source.stem}.o")
        subprocess.run([*compiler, f"-I{root / 'xla_ffi'}", "-c", str(source), "-o", target], check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    program = str(host.folder / "gpu_pipeline_benchmark")
    subprocess.run([*compiler, *objects, "-ldl", "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def training(host: Host) -> tuple[Any, Any, Any]:
    """Steps of GPT-2 (sums beside the backward pass; after it, in a program of their own; none), state, batch."""
    import optax
    from flax.training.train_state import TrainState

    sys.path.append(str(EXAMPLES))
    import train_gpt2
    from models import gpt2

    config, rate = train_gpt2.SIZES["small" if host.on_gpu else "tiny"]
    model = gpt2.GPT2(config)
    with_aux = gpt2.loss_of(model)
    batch = next(train_gpt2.batches(train_gpt2.read_text(None), 8, config.context, host))

    def loss_of(params: Any, batch: Any) -> Any:
        return with_aux(params, batch)[0]

    def gradients_of(state: Any, batch: Any) -> Any:
        return jax.grad(loss_of)(jax.tree.map(lambda x: x.astype(jnp.bfloat16), state.params), batch)

    def update_by(state: Any, sums: Any) -> Any:
        means = jax.tree.map(lambda x: x.astype(jnp.float32) / host.world_size, sums)
        return state.apply_gradients(grads=means)

    here, split = P(), P("d")
    gradients_of = jax.shard_map(gradients_of, mesh=host.mesh, in_specs=(here, split), out_specs=split, check_vma=False)
    gradients, add_up, update = jax.jit(gradients_of), summing(host), jax.jit(update_by, donate_argnums=0)

    def apart(state: Any, batch: Any) -> Any:
        return update(state, add_up(jax.block_until_ready(gradients(state, batch)))), None

    steps = {
        "overlap": train_gpt2.make_step(loss_of, host.mesh),
        "apart": apart,
        "no sums": train_gpt2.make_step(loss_of, host.mesh, sums=False),
    }
    example = jnp.zeros((1, config.context), jnp.int32)
    params = jax.jit(lambda: model.init(jax.random.key(0), example)["params"])()
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(rate))
    return steps, jax.device_put(state, NamedSharding(host.mesh, P())), batch


def overlap(host: Host) -> Any:
    steps, state, batch = training(host)
    import train_gpt2

    return train_gpt2.measure(steps, state, batch)


def profile(host: Host) -> Any:
    """A time line of five steps, which JAX writes beside the result."""
    steps, state, batch = training(host)
    for _ in range(3):
        state, _ = jax.block_until_ready(steps["overlap"](state, batch))
    with jax.profiler.trace(str(host.folder)):
        for _ in range(5):
            state, _ = jax.block_until_ready(steps["overlap"](state, batch))
    texts = [
        module.to_string()
        for executable in host.mesh.devices.flat[0].client.live_executables()
        for module in executable.hlo_modules()
    ]
    call = r'%([\w.\-]+) = [^\n]*custom_call_target="passing_psum"'
    return gpu_trace.summary(host.folder, {name for text in texts for name in re.findall(call, text)})


PARTS = {
    part.__name__: part for part in (sums, errors, threads, growth, memory, call, copies, pipeline, overlap, profile)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--platforms", default="cpu", help="of each rank: cuda or cpu")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--tell-after-s", type=float, help="print then what all threads of Python do")
    arguments = parser.parse_args()
    if arguments.tell_after_s is not None:
        faulthandler.dump_traceback_later(arguments.tell_after_s)
    platforms = arguments.platforms.split(",")
    rank = int(os.environ.get("JAX_PASSING_RANK", "0"))
    # process_sum computes on the CPU everywhere.
    jax.config.update("jax_platforms", "cpu" if platforms[rank] == "cpu" else f"{platforms[rank]},cpu")
    mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
    host = Host(rank, len(platforms), mesh, platforms[rank] != "cpu", arguments.result.with_suffix(""))
    if arguments.part == "errors":  # its sessions are its own, as one of them fails
        result = errors(host)
    else:
        with jax_passing.init(axis_name="d"):
            result = PARTS[arguments.part](host)
    if rank == 0:
        arguments.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
