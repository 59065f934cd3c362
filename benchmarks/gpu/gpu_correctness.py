"""The parts of benchmarks/gpu/gpu.py that show whether sums, errors, threads and memory are as they must be."""

import gc
import hashlib
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from gpu_program import Host, summing
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.primitives.operands import SUPPORTED_DTYPES

# Around the limits of packets, blocks (1440 elements) and segments; the last one is cut for copies, too.
COUNTS = (1, 255, 1440, 1441, 65_537, 2**20 + 7)
FLOATS = {  # dtype: (significant bits, bits that a lane has for one element)
    "bfloat16": (8, 16),
    "float16": (11, 31),
    "float32": (24, 31),
    "float64": (53, 62),
}


MEMORY_MEBIBYTES = 256
THREAD_S = 1.0  # between the threads of a host
STEPS, SETTLED = 10_000, 1_000
GROWING = ("resident_bytes", "device_bytes", "descriptors", "threads")


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
    """Elements that aren't the exact sum, or farther from it than docs/internals/fixed_point.md allows."""
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
        # As `BlockElements` of fixed_point.cc, or twice that: a small leaf has a scale for each element or pair.
        elements = min(max(2, 1 << (-(-len(got) // 120) - 1).bit_length()), 256)
        for start in range(0, len(got), elements):
            block = slice(start, start + elements)
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
    """Hosts whose programs differ: the sum under way must fail by name, and the process lives."""

    def body(x: Any) -> Any:  # the sum is of an array of the program's own
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
