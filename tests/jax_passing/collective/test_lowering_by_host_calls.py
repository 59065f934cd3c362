"""Sums by calls of Python, the way of TPUs, forced on CPU devices.

What several hosts do is in tests/end_to_end/sums/test_by_host_calls.py.
"""

import re
from dataclasses import replace
from functools import partial

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
from support.jax.collective_cases import (
    BY_CALLS_OF_PYTHON,
    FUNCTIONS,
    OURS,
    body,
    by_lax,
    check,
    every_dtype,
    over_rows,
    rows_of,
    rows_of_every_dtype,
)
from support.jax.host_calls_on_cpu import host_calls_on_cpu
from support.jax.on_mesh import bits, on_mesh, values

pytestmark = pytest.mark.usefixtures("session")


def by_calls(ours, *args):
    """Returns a program's result, after a look at the calls of Python in it."""
    text = ours.lower(*args).as_text()
    assert "xla_ffi_python_cpu_callback" in text
    assert "passing_psum" not in text
    return jax.block_until_ready(ours(*args))


def same_as_ffi(program, *args):
    """The result of `program()` has the same bits both ways."""
    expected = program()(*args)
    with host_calls_on_cpu():
        ours = program()
        assert bits(by_calls(ours, *args)) == bits(expected)
        for _ in range(2):
            assert bits(ours(*args)) == bits(expected)


BY_CALLS = [name for name in FUNCTIONS if name != "psum in two parts"]  # which TPUs can't


@pytest.mark.usefixtures("compiled_fast")
@pytest.mark.parametrize("transform", BY_CALLS_OF_PYTHON)
def test_transforms(transform):
    check_vma, rows = transform in ("grad of cond", "grad of scan"), rows_of(4)
    with host_calls_on_cpu():
        got = by_calls(over_rows(body(OURS, transform, BY_CALLS), check_vma=check_vma), rows)
    check(got, by_lax(transform, BY_CALLS)(rows))


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_fast")
def test_every_dtype():
    with jax.enable_x64(True):  # on this thread only
        same_as_ffi(lambda: over_rows(partial(every_dtype, in_two_parts=False)), rows_of_every_dtype(4))


def test_trees_with_empty_and_strided_leaves():
    def body(x):
        a, b, empty, number = jax_passing.psum((x, x[:, ::2].T.astype(jnp.int32), x[:, :0], x[0, 0]), "d")
        return a, b, number + empty.sum()

    same_as_ffi(lambda: on_mesh(body, out_specs=P()), values(np.dtype(np.float32), (4, 6)))


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
