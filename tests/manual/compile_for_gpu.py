"""Shows what XLA makes of sums on a GPU that isn't there: python tests/manual/compile_for_gpu.py

It needs the packages of the examples, and JAX's plugin for CUDA, of jaxlib's version; no GPU, no driver, no CUDA:

    pip install --no-deps jax-cuda13-plugin==VERSION jax-cuda13-pjrt==VERSION

Programs with sums are compiled for an H200. The compiled modules must hold what
docs/internals/accelerators.md says of them: XLA keeps a sum's leaves where they are from start to done, no two tokens
of sums under way are at the same address, sums start in the program's order, and sums of a backward pass start within
it and are awaited behind it. Nothing is run.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import _native
from jax_passing.collective.runtime import handlers

DUMP = Path(tempfile.mkdtemp(prefix="compile_for_gpu"))  # what XLA says of its work
H200 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  name: "NVIDIA H200"  core_count: 132  clock_rate_ghz: 1.98  fpus_per_core: 128
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 52428800  device_memory_size: 151397597184
}
platform_name: "CUDA"
dnn_version_info { major: 9  minor: 10 }
device_description_str: "NVIDIA H200"
"""
LAYERS = 6
COUNTS = (1, 2, 8)  # of devices


def loss(params: Any, x: Any) -> Any:
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def held(mesh: Mesh) -> Any:
    """A step of data parallelism, with a bucket for each layer."""

    def step(params, x):
        sums = jax_passing.psum(jax.grad(loss)(params, x), "d", bucket_bytes=4 * 2**20)
        return [w - 0.1 * g for w, g in zip(params, sums, strict=True)]

    step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False)
    x = array(mesh, (256 * mesh.size, 1024), P("d"))
    return jax.jit(step, donate_argnums=0), ([array(mesh, (1024, 1024), P())] * LAYERS, x)


def several(mesh: Mesh) -> Any:
    """Sums that nothing holds, whose leaves are used elsewhere, too, beside work that needs none of them."""

    def program(x):
        a, b = jax_passing.psum((x, x[:7] * 2), "d")
        return a + jax_passing.psum(jnp.sin(x), "d"), b, x, jnp.tanh(x @ x @ x)

    mapped = jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0), (array(mesh, (512 * mesh.size, 512), P("d")),)


def loop(mesh: Mesh) -> Any:
    def program(x):
        def body(carry, i):
            total = jax_passing.psum(jnp.sin(carry @ carry) + i, "d")
            return total * 0.5, jnp.sum(total)

        return jax.lax.scan(body, x, jnp.arange(6.0))

    mapped = jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped), (array(mesh, (512 * mesh.size, 512), P("d")),)


def until(mesh: Mesh) -> Any:
    """A loop whose end depends on its sums."""

    def program(x):
        def body(carry):
            return jax_passing.psum(carry[0] * 2, "d"), carry[1] + 1

        return jax.lax.while_loop(lambda carry: jnp.max(carry[0]) < 1e6, body, (x, 0))

    mapped = jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=(P("d"), P()), check_vma=False)
    return jax.jit(mapped), (array(mesh, (512 * mesh.size, 512), P("d")),)


def steps(mesh: Mesh) -> Any:
    """Several steps of training in one loop, whose parameters are donated."""

    def program(params, batches):
        def step(params, x):
            sums = jax_passing.psum(jax.grad(loss)(params, x), "d", bucket_bytes=4 * 2**20)
            return [w - 0.1 * g for w, g in zip(params, sums, strict=True)], ()

        return jax.lax.scan(step, params, batches)[0]

    mapped = jax.shard_map(program, mesh=mesh, in_specs=(P(), P(None, "d")), out_specs=P(), check_vma=False)
    batches = array(mesh, (4, 256 * mesh.size, 1024), P(None, "d"))
    return jax.jit(mapped, donate_argnums=0), ([array(mesh, (1024, 1024), P())] * LAYERS, batches)


def through(mesh: Mesh) -> Any:
    """The gradient goes through a sum, which is computed again for it."""

    def program(w, x):
        def loss(w):
            hidden = jax.checkpoint(lambda w: jax_passing.psum(jnp.tanh(x @ w), "d"))(w)
            return jnp.sum(jnp.sin(hidden) ** 2)

        return jax.grad(loss)(w)

    mapped = jax.shard_map(program, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped), (array(mesh, (512, 512), P()), array(mesh, (256 * mesh.size, 512), P("d")))


def half(mesh: Mesh) -> Any:
    """Devices add up 16-bit floats first, if there are several, and a leaf is used again behind its sum."""

    def program(x, y):
        return jax_passing.psum((x, y), "d"), x + 1, (y @ y.T).sum()

    mapped = jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=(P("d"), P("d"), P()), check_vma=False)
    x = array(mesh, (2048 * mesh.size, 1024), P("d"), jnp.bfloat16)
    return jax.jit(mapped, donate_argnums=0), (x, array(mesh, (512 * mesh.size, 512), P("d")))


def partly(mesh: Mesh) -> Any:
    """XLA splits the parameters along an axis of its own, so it gathers their gradients before they are summed."""
    mesh = Mesh(mesh.devices.reshape(-1, 2), ("d", "m"))

    def step(params, x):
        sums = jax_passing.psum(jax.grad(loss)(params, x), "d", bucket_bytes=4 * 2**20)
        return [w - 0.1 * g for w, g in zip(params, sums, strict=True)]

    options = {"in_specs": (P(), P("d")), "out_specs": P(), "check_vma": False}
    mapped = jax.shard_map(step, mesh=mesh, axis_names={"d"}, **options)
    x = array(mesh, (256 * mesh.shape["d"], 1024), P("d"))
    return jax.jit(mapped, donate_argnums=0), ([array(mesh, (1024, 1024), P(None, "m"))] * LAYERS, x)


def pmapped(mesh: Mesh) -> Any:
    mapped = jax.pmap(lambda x: jax_passing.psum((x, x[:3]), "d"), axis_name="d", devices=list(mesh.devices.flat))
    return mapped, (jax.ShapeDtypeStruct((mesh.size, 1024, 1024), jnp.float32),)


def branch(mesh: Mesh) -> Any:
    def program(x):
        return jax.lax.cond(jnp.sum(x) > 0, lambda x: jax_passing.psum(x * 2, "d"), lambda x: x + 1, x)

    mapped = jax.shard_map(program, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return jax.jit(mapped), (array(mesh, (512 * mesh.size, 512), P("d")),)


def gpt2(mesh: Mesh) -> Any:
    """A step of examples/train_gpt2.py."""
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    import optax
    from flax.training.train_state import TrainState

    import train_gpt2
    from models import gpt2

    config, rate = train_gpt2.SIZES["small"]
    model = gpt2.GPT2(config)
    loss_of = gpt2.loss_of(model)

    def start() -> Any:
        params = model.init(jax.random.key(0), jnp.zeros((1, config.context), jnp.int32))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(rate))

    state = jax.tree.map(lambda leaf: array(mesh, leaf.shape, P(), leaf.dtype), jax.eval_shape(start))
    tokens = array(mesh, (8 * mesh.size, config.context + 1), P("d"), jnp.int32)
    return train_gpt2.make_step(lambda *given: loss_of(*given)[0], mesh), (state, {"tokens": tokens})


def array(mesh: Mesh, shape: tuple[int, ...], spec: P, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


# --- what was made of it


def addresses() -> dict[tuple[str, str], tuple[int, int]]:
    """(allocation, offset) of each value, by instruction and index in its tuple, of what was dumped last."""
    found, allocation = {}, 0
    newest = max(DUMP.glob("*after_optimizations-buffer-assignment.txt"), key=lambda path: path.stat().st_mtime)
    for line in newest.read_text().splitlines():
        if begin := re.match(r"\s*allocation (\d+):", line):
            allocation = int(begin[1])
        elif value := re.match(r"\s*value: <\d+ ([\w.\-]+)(?:\{([\d,]*)\})? @\d+> \(size=\d+,offset=(\d+)\)", line):
            found[value[1], value[2] or ""] = (allocation, int(value[3]))
    return found


class Block:
    """The instructions of one computation, in the order in which they are enqueued."""

    def __init__(self, text: str) -> None:
        self.lines = dict(re.findall(r"^\s*(?:ROOT )?%([\w.\-]+) = (.*)$", text, re.MULTILINE))
        self.order = {name: i for i, name in enumerate(self.lines)}

    def calls(self, target: str) -> list[str]:
        return [name for name, line in self.lines.items() if f'custom_call_target="{target}"' in line]

    def operands(self, call: str) -> list[tuple[str, str]]:
        """Returns the operands of a custom call, each as (instruction, index in its tuple)."""
        inside = re.search(r"custom-call\((.*?)\), custom_call_target", self.lines[call])
        assert inside is not None
        return [self._source(name) for name in re.findall(r"%([\w.\-]+)", inside[1])]

    def _source(self, name: str) -> tuple[str, str]:
        element = re.search(r"get-tuple-element\(.*%([\w.\-]+)\), index=(\d+)", self.lines.get(name, ""))
        bitcast = re.search(r" bitcast\(.*%([\w.\-]+)\)", self.lines.get(name, ""))
        return (element[1], element[2]) if element else self._source(bitcast[1]) if bitcast else (name, "")


def check(name: str, mesh: Mesh, text: str) -> None:
    at, checked = addresses(), 0
    for block in map(Block, text.split("\n\n")):
        starts, dones = block.calls("passing_psum"), block.calls("passing_psum_done")
        done_of = {block.operands(done)[0][0]: done for done in dones}
        assert sorted(done_of) == sorted(starts), "each start has one done"
        for start, done in done_of.items():
            given, taken = block.operands(start)[1:], block.operands(done)[2:]
            assert taken == [(start, str(i + 1)) for i in range(len(given))], "done takes what start returns"
            for i, leaf in enumerate(given):
                places = {at[start, str(i + 1)], at[done, str(i) if len(given) > 1 else ""], at.get(leaf)} - {None}
                assert len(places) == 1, (start, done, i, places)
                checked += 1
            under_way = [other for other in starts if block.order[other] < block.order[done]]
            under_way = [other for other in under_way if block.order[done_of[other]] > block.order[start]]
            tokens = {at[other, "0"] for other in under_way}
            assert len(tokens) == len(under_way), "two sums under way have one token"
        if name in ("held", "gpt2") and starts:
            products = [block.order[each] for each in block.lines if "dot" in each or "gemm" in each]
            assert max(products) < min(block.order[done] for done in dones), "awaited behind the backward pass"
            behind = sum(place > min(block.order[start] for start in starts) for place in products)
            # Two thirds of all products of matrices are the backward pass's. Devices that add up first go on with the
            # next bucket's gradients: here with one layer of the six.
            adds_up_first = "all-to-all" in text
            least = len(products) / (3 if adds_up_first else 2)
            assert behind >= least, (behind, len(products), "the first one starts when it can")
        if name == "held" and starts:
            assert len(starts) == LAYERS
            assert adds_up_first == (mesh.size > 1)
            in_order = sorted(done_of, key=block.order.__getitem__)
            awaited = sorted(done_of, key=lambda start: block.order[done_of[start]])
            free = 1 + adds_up_first  # the last ones have nothing to be in front of
            assert in_order[:-free] == awaited[:-free], "awaited as they started"
    assert checked
    print(f"{name} on {mesh.size} of an H200: {checked} leaves stay where they are")


def main() -> None:
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={DUMP} --xla_dump_hlo_as_text --xla_gpu_autotune_level=0"
    os.environ.setdefault("JAX_PASSING_JOB", "compile_for_gpu")
    jax.config.update("jax_platforms", "cpu")
    jax.devices()  # only now are plugins known
    with jax_passing.init(world_size=1, rank=0, axis_name="d"):
        handlers.register_ffi()
        handlers._register("CUDA", _native.cuda_ffi_state_type(), _native.cuda_ffi_targets())
        local_devices = jax.local_devices
        for count in COUNTS:
            topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology=f"1x1x{count}")
            devices = list(topology.devices)
            # Such devices are no backend's.
            jax.local_devices = lambda *_, backend=None, devices=devices, **__: (
                local_devices(backend=backend) if backend in (None, "cpu") else devices
            )
            mesh = Mesh(devices, ("d",))
            cases = (held, several, loop, until, steps, branch, through, half, pmapped)
            for case in (*cases, gpt2 if count <= 2 else partly):
                function, arguments = case(mesh)
                check(case.__name__, mesh, function.lower(*arguments).compile().as_text())
    print(f"jaxlib {jax.lib.__version__}: all is as docs/internals/accelerators.md says; what XLA dumped is in {DUMP}")


if __name__ == "__main__":
    sys.exit(main())
