"""Sums by calls of Python, the way of TPUs, forced on CPU devices.

What several hosts do is in tests/end_to_end/sums/test_by_host_calls.py.
"""

import re
from dataclasses import replace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing._native import HostProgram
from jax_passing.collective.naming.sum_spec import SumSpec
from jax_passing.collective.runtime.rank import rank
from jax_passing.errors import ConfigError, UsageError, failure_in
from support.jax.host_calls_on_cpu import host_calls_on_cpu
from support.jax.on_mesh import bits, on_mesh, values

pytestmark = pytest.mark.usefixtures("session")

LAYERS = 4


def same_as_ffi(program, *args):
    """The result of `program()`, both ways; and a call of Python was made."""
    expected = program()(*args)
    with host_calls_on_cpu():
        ours = program()
        assert "xla_ffi_python_cpu_callback" in ours.lower(*args).as_text()
        assert "passing_psum" not in ours.lower(*args).as_text()
        result = jax.block_until_ready(ours(*args))
        assert bits(result) == bits(expected)
        for _ in range(2):
            assert bits(ours(*args)) == bits(expected)
    return result


DTYPES = ("int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64")
X64 = ("int64", "uint64", "float64", "complex128")


@pytest.mark.parametrize(("devices", "x64"), [(1, False), (2, True), (4, False)])
def test_dtypes(devices, x64, check_vma):
    with jax.enable_x64(x64):  # on this thread only
        tree = {dtype: values(jnp.dtype(dtype)) for dtype in (*DTYPES, *(X64 if x64 else ()))}
        results = same_as_ffi(
            lambda: on_mesh(lambda x: jax_passing.psum(x, "d"), devices, out_specs=P(), check_vma=check_vma), tree
        )
    assert {dtype: str(result.dtype) for dtype, result in results.items()} == {dtype: dtype for dtype in tree}
    for dtype, x in tree.items():
        if np.issubdtype(jnp.dtype(dtype), np.integer):
            parts = x.reshape(devices, 4 // devices, 3, 5)
            np.testing.assert_array_equal(results[dtype], parts.sum(0, dtype=dtype))  # wraps


def test_trees_with_empty_and_strided_leaves():
    def body(x):
        a, b, empty, number = jax_passing.psum((x, x[:, ::2].T.astype(jnp.int32), x[:, :0], x[0, 0]), "d")
        return a, b, number + empty.sum()

    same_as_ffi(lambda: on_mesh(body, out_specs=P()), values(np.dtype(np.float32), (4, 6)))


def test_nan_and_infinities():
    x = np.array([[1, np.nan, np.inf, -np.inf, np.inf], [1, 2, 3, 4, -np.inf]], np.float32)
    result = same_as_ffi(lambda: on_mesh(lambda x: jax_passing.psum(x, "d"), out_specs=P()), x)
    np.testing.assert_array_equal(result, x.sum(0, keepdims=True))


def network(check_vma):
    """Gradients of several layers, in a bucket for each: of 64 KiB, so that on CPU they start side by side."""

    def step(params, x):
        def loss(params):
            y = x
            for w in params:
                y = jnp.tanh(y @ w)
            return jnp.sum(y)

        if check_vma:
            return jax.grad(lambda params: loss(jax_passing.pvary(params, "d")))(params)
        return jax_passing.psum(jax.grad(loss)(params), "d", bucket_bytes=1)

    return on_mesh(step, in_specs=(P(), P("d")), out_specs=P(), check_vma=check_vma)


def test_gradients(check_vma):
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    params = [jax.random.normal(key, (128, 128)) / 8 for key in keys[1:]]
    same_as_ffi(lambda: network(check_vma), params, jax.random.normal(keys[0], (8, 128)))


def test_scans_branches_and_loops():
    def body(x):
        def once(carry, i):
            taken = jax.lax.cond(i % 2 == 0, lambda y: jax_passing.psum(y * 2, "d"), lambda y: y, carry)
            return jax_passing.psum(taken + i, "d") / 4, taken

        y, each = jax.lax.scan(once, x, jnp.arange(5.0))
        count = jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jax_passing.psum(c[1], "d")), (0, y.astype(jnp.int32))
        )[1]
        return y, each[None], count

    same_as_ffi(lambda: on_mesh(body, out_specs=(P("d"), P("d"), P("d"))), values(np.dtype(np.float32), (4, 3)))


def test_gradient_through_a_scan_with_recomputation():
    def body(x):
        def loss(x):
            def once(y, _):
                return jnp.sin(jax_passing.psum(y, "d")), None

            return jax.lax.scan(jax.checkpoint(once), x, None, length=3)[0].sum()

        return jax.grad(loss)(x)

    same_as_ffi(lambda: on_mesh(body), values(np.dtype(np.float32), (2, 3)))


def test_vmap_and_several_groups():
    mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

    def program():
        body = jax.vmap(lambda x: jax_passing.psum(x, "d") + jax_passing.psum(x * x, ("m", "d")))
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("m", "d"), out_specs=P("m", "d"), check_vma=False))

    x = values(np.dtype(np.float32), (4, 6, 3))
    same_as_ffi(program, x)
    same_as_ffi(lambda: jax.jit(jax.vmap(lambda x: jax_passing.psum(x, "v"), axis_name="v")), x)  # on one device


def test_rank_and_number_of_hosts():
    program = lambda: on_mesh(lambda x: x + jax_passing.axis_index("d") + jax_passing.axis_size("d"), 4)  # noqa: E731
    same = program()(jnp.zeros(4, np.int32))
    with host_calls_on_cpu():
        assert bits(program()(jnp.zeros(4, np.int32))) == bits(same)
        program = jax.jit(rank)
        assert "xla_ffi_python_cpu_callback" in program.lower().as_text()
        assert program() == 0


def test_a_program_outlives_its_session():
    with host_calls_on_cpu():
        program = on_mesh(lambda x: jax_passing.psum(x, "d"))
        x = values(np.dtype(np.float32))
        compiled = program.lower(x).compile()
        expected = bits(compiled(x))
        jax_passing.session.current().shutdown()
        with pytest.raises(jax.errors.JaxRuntimeError) as caught:
            compiled(x).block_until_ready()
        assert failure_in(str(caught.value)).kind == "UsageError"
        with pytest.raises(UsageError), jax_passing.errors.translate():
            compiled(x).block_until_ready()
        with jax_passing.init(world_size=1, rank=0, axis_name="d"):
            for _ in range(3):
                assert bits(compiled(x)) == expected


def test_many_devices():
    """Each blocks a thread of XLA's; on a machine with few CPUs, there are few."""
    with host_calls_on_cpu():
        x = jnp.arange(8.0)
        body = lambda x: jax_passing.psum(x, "d") + jax_passing.psum(2 * x, "d")  # noqa: E731
        np.testing.assert_array_equal(on_mesh(body, 8)(x), np.full(8, 84.0))


def test_devices_of_one_program_run_side_by_side():
    """A jitted function is lowered for each device by itself, or the calls wouldn't know theirs."""
    with host_calls_on_cpu():
        program = jax.jit(jax.vmap(lambda x: jax_passing.psum(x, "v"), axis_name="v"))
        for device in jax.local_devices()[:3]:
            x = jax.device_put(values(np.dtype(np.int32)), device)
            np.testing.assert_array_equal(program(x)[0], np.asarray(x).sum(0, dtype=np.int32))


def test_streams_of_executables():
    with host_calls_on_cpu():
        x = jnp.ones(3)
        program = jax.jit(jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d"))
        compiled = program.lower(x).compile()
        with jax_passing.stream('other " name'):
            other = program.lower(x).compile()
            assert other(x)[0] == 3
            with pytest.raises(UsageError, match="in the thread that called"):
                compiled(x)
        with pytest.raises(UsageError, match="other"):
            other(x)


# Programs that are refused, with the reason.


def test_sums_need_shard_map_over_all_axes():
    mesh = jax.make_mesh((2, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)

    def mapped(f, **options):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False, **options))

    with host_calls_on_cpu():
        with pytest.raises(NotImplementedError, match="jax.shard_map over all axes"):
            mapped(lambda x: jax_passing.psum(x, "d"), axis_names={"d"}).lower(jnp.ones(8))
        total = mapped(lambda x: jax_passing.psum(x, "d"))
        with pytest.raises(NotImplementedError, match="put the loop or branch inside of jax.shard_map"):
            jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: total(x), x)).lower(jnp.ones(8))
        shared = jax.jit(total, in_shardings=jax.NamedSharding(mesh, P("d")))
        with pytest.raises(NotImplementedError, match="nothing tells the copies apart"):
            jax.jit(lambda x: shared(x) + shared(2 * x)).lower(jnp.ones(8))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("in_loop", [False, True])
def test_devices_that_jax_doesnt_name_are_an_error(devices, in_loop):
    mesh = jax.sharding.AbstractMesh((devices,), ("d",))

    def body(x):
        if in_loop:
            return jax.lax.fori_loop(0, 3, lambda _, x: jax_passing.psum(x, "d"), x)
        return jax_passing.psum(x, "d")

    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    x = jax.ShapeDtypeStruct((8,), np.float32, sharding=jax.NamedSharding(mesh, P("d")))
    with pytest.raises(ConfigError, match=f"{devices} devices that JAX doesn't name.*give jax.shard_map its mesh"):
        f.trace(x).lower(lowering_platforms=("tpu",))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(jax.make_mesh((devices,), ("d",)), P("d")))
    with host_calls_on_cpu(), pytest.raises(ConfigError, match="doesn't name"):
        f(x)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_mesh_from_the_context(axis_type):
    with jax.set_mesh(jax.make_mesh((2,), ("d",), axis_types=(axis_type,))):
        x = jax.device_put(values(np.dtype(np.float32)), P("d"))
        mapped = jax.shard_map(lambda x: jax_passing.psum(x, "d"), in_specs=P("d"), out_specs=P(), check_vma=False)
        same_as_ffi(lambda: jax.jit(mapped), x)


# For TPUs, which aren't at hand.


def solve(x):
    return jax.lax.custom_linear_solve(lambda v: 3 * v + jax_passing.psum(v, "d"), x, lambda f, b: f(b), symmetric=True)


@jax.custom_batching.custom_vmap
def sums_of_each(x):
    return jax_passing.psum(x, "d")


@sums_of_each.def_vmap
def _(size, batched, x):
    return jax_passing.psum(x, "d"), True


@pytest.mark.parametrize("function", [solve, sums_of_each])
def test_every_call_of_a_function_is_lowered_by_itself(function):
    """Copies that JAX makes of one lowering would count as executions, in an order that XLA makes up."""
    inner = jax.jit(function)
    program = lambda: on_mesh(lambda x: inner(x) + 10 * inner(2 * x))  # noqa: E731
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with host_calls_on_cpu():
        calls = re.findall(r"xla_ffi_python_cpu_callback.*index = (\d+)", program().lower(x).as_text())
    assert calls == [str(number) for number in range(3)]  # the execution, and two sums
    assert "site=1\\0A" in program().lower(x).as_text()
    same_as_ffi(program, x)


def test_the_spec_is_read_as_by_the_handlers():
    program = HostProgram()
    spec = SumSpec(3, "program", identity="{}", leaf_elements=(1,))
    assert [program.add(spec.encode()) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="It expects op, not"):
        program.add(replace(spec, op="min").encode())
