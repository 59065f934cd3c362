"""The parts of benchmarks/gpu/gpu.py that measure: calls, copies, the pipeline, overlap, and a profile."""

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpu_trace
import jax
import jax.numpy as jnp
import numpy as np
from gpu_program import Host, placed, summing
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

EXAMPLES = Path(__file__).parents[2] / "examples"


CALLS = 1000
ROUNDS = 15
COPY_MEBIBYTES = (1, 16, 64, 256)


def times_of(step: Callable[[Any], Any], x: Any, rounds: int) -> Iterator[tuple[float, float]]:
    """Yields each round's seconds (until dispatched, until done). A round's argument is the last one's result."""
    for _ in range(rounds):
        began = time.perf_counter()
        x = step(x)
        dispatched_s = time.perf_counter() - began
        jax.block_until_ready(x)
        yield dispatched_s, time.perf_counter() - began


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
    flags = ["-std=c++20", "-O3", "-ffp-contract=off", "-fno-math-errno", "-pthread"]
    compiler = [os.environ.get("CXX", "g++"), *flags]

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
