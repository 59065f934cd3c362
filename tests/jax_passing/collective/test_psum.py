import contextlib
import functools
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import (
    ConfigError,
    UnvaryingInputError,
    UsageError,
)
from jax_passing.host import scope
from support.jax.on_mesh import on_mesh as on_mesh_of

pytestmark = pytest.mark.usefixtures("session")

on_mesh = functools.partial(on_mesh_of, devices=4, out_specs=P())


def same_as_lax(x, *, check_vma=False, mean=False):
    ours = on_mesh(lambda x: (jax_passing.pmean if mean else jax_passing.psum)(x, "d"), check_vma=check_vma)(x)
    theirs = on_mesh(lambda x: (jax.lax.pmean if mean else jax.lax.psum)(x, "d"), check_vma=check_vma)(x)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), ours) == jax.tree.map(lambda a: (a.shape, a.dtype), theirs)
    return ours


def small_numbers(dtype, shape=(4, 3, 5), seed=0):
    """Whose sums are exact in every dtype."""
    numbers = np.random.default_rng(seed).integers(0, 8, shape)
    return jnp.asarray(numbers + 1j * numbers[::-1] if dtype.startswith("complex") else numbers, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(dtype):
    values = np.array([[1.0], [2.0**-9], [2.0**-9], [2.0**-9]])  # each alone is lost beside 1 in bfloat16
    result = on_mesh(lambda x: jax_passing.psum(x, "d"))(jnp.asarray(values, dtype))
    assert result.item() == jnp.asarray(values.sum(), dtype).item()


def test_result_has_the_same_bits_every_time():
    x = jax.random.normal(jax.random.key(0), (4, 1000))
    f = on_mesh(lambda x: jax_passing.psum(x, "d"), out_specs=P("d"))
    first = np.asarray(f(x))
    for _ in range(5):
        np.testing.assert_array_equal(np.asarray(f(x)), first)
    np.testing.assert_array_equal(first, np.tile(first[:1], (4, 1)))  # on every device
    np.testing.assert_allclose(first[0], np.asarray(x).sum(0), rtol=1e-5, atol=1e-6)


def test_nan_and_infinities():
    x = jnp.asarray([[1, jnp.nan, jnp.inf, -jnp.inf, jnp.inf], [1, 2, 3, 4, -jnp.inf], [0] * 5, [0] * 5])
    same_as_lax(x)


@pytest.mark.parametrize("shapes", [[(4,), (4, 1), (4, 4097)], [(4, 0), (4, 3, 0, 2)]], ids=["some", "empty"])
def test_shapes(shapes, check_vma):
    same_as_lax([small_numbers("float32", shape) for shape in shapes], check_vma=check_vma)


def test_scalars_inside():
    f = on_mesh(lambda x: jax_passing.psum(x[0], "d"))
    assert f(jnp.arange(4.0)).item() == 6
    assert f(jnp.arange(4.0)).shape == ()


def test_non_contiguous_operands():
    x = jnp.arange(4.0 * 6 * 8).reshape(4, 6, 8)
    for f in (lambda x: x[:, ::2, ::-1], lambda x: jnp.swapaxes(x, 1, 2)):
        ours = on_mesh(lambda x, f=f: jax_passing.psum(f(x), "d"))(x)
        np.testing.assert_array_equal(ours, on_mesh(lambda x, f=f: jax.lax.psum(f(x), "d"))(x))


def test_trees_of_mixed_dtypes(check_vma):
    tree = {"a": small_numbers("float32"), "b": [small_numbers("int32"), (small_numbers("float32", (4, 7)), None)]}
    same_as_lax(tree, check_vma=check_vma)
    same_as_lax({}, check_vma=check_vma)
    same_as_lax((), check_vma=check_vma)


def test_empty_leaves_among_others(check_vma):
    def f(x):
        # The empty leaf stays inside: jaxlib 0.11.2 crashes on any program with an empty and another result.
        empty, total, empty_integers = jax_passing.psum((x[:, :0], x, x[:0].astype(jnp.int32)), "d")
        assert (empty.shape, empty.dtype) == ((1, 0), jnp.float32)
        assert (empty_integers.shape, empty_integers.dtype) == ((0, 3), jnp.int32)
        return total + empty.sum() + empty_integers.sum().astype(jnp.float32)

    x = small_numbers("float32", (4, 3))
    np.testing.assert_array_equal(on_mesh(f, check_vma=check_vma)(x), x.sum(0, keepdims=True))


def test_large_leaves_and_many_buckets():
    tree = [jnp.ones((4, 5 << 20), jnp.float32), jnp.ones((4, 3), jnp.float32), jnp.full((4, 4 << 20), 2.0)]
    result = on_mesh(lambda x: jax_passing.psum(x, "d"))(tree)
    assert [(leaf.min().item(), leaf.max().item()) for leaf in result] == [(4, 4), (4, 4), (8, 8)]


def psums(jaxpr):
    """The equations of a program that sum, in order."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith("passing_psum"):
            found.append(equation)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found += psums(getattr(inner, "jaxpr", inner))
    return found


def sites(jaxpr):
    return [equation.params["site"] for equation in psums(jaxpr)]


def test_buckets_dont_depend_on_what_comes_before_the_sum(check_vma):
    """Hosts may differ in it: here, in the order of the layers and in the work behind each gradient."""

    def step(order):
        def inside(params, x):
            def loss(params):
                y = x
                for name in order:
                    y = jnp.tanh(y @ params[name])
                return y.sum()

            gradients = jax.grad(loss)(jax.lax.pcast(params, "d", to="varying") if check_vma else params)
            return jax_passing.psum(gradients, "d", bucket_bytes=1)

        return on_mesh(inside, in_specs=(P(), P("d")), check_vma=check_vma)

    params = {"a": jnp.ones((3, 3)), "b": jnp.ones((3, 3)), "c": jnp.ones((3, 3))}
    for order in ("abc", "cab", "bcca"):
        jaxpr = jax.make_jaxpr(step(order))(params, jnp.ones((4, 3)))
        assert [site.paths for site in sites(jaxpr.jaxpr)] == [("['c']",), ("['b']",), ("['a']",)]


def test_sums_of_no_program_go_the_last_leaf_first(check_vma):
    program = on_mesh(lambda x: jax_passing.psum(x, "d", bucket_bytes=50), check_vma=check_vma)
    tree = [jnp.ones((4, 3)), jnp.ones((4, 5)), jnp.ones((4, 7)), jnp.ones((4, 9))]
    jaxpr = jax.make_jaxpr(program)(tree)
    shapes = [[operand.aval.shape for operand in equation.invars] for equation in psums(jaxpr.jaxpr)]
    assert shapes == [[(1, 9)], [(1, 7), (1, 5)], [(1, 3)]]


def test_the_same_array_twice():
    x = jnp.arange(8.0).reshape(4, 2)
    a, b = on_mesh(lambda x: jax_passing.psum((x, x), "d"), out_specs=(P(), P()))(x)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, [[12, 16]])


def test_operand_that_is_used_afterwards_and_donated():
    f = on_mesh(lambda x: (jax_passing.psum(x, "d") * 0 + x, x), out_specs=(P("d"), P("d")))
    x = jnp.arange(8.0).reshape(4, 2)
    before = np.asarray(x)
    for result in f(x):
        np.testing.assert_array_equal(result, before)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    g = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    donated = jax.device_put(before, jax.NamedSharding(mesh, P("d")))
    np.testing.assert_array_equal(jax.jit(g, donate_argnums=0)(donated), np.tile(before.sum(0), (4, 1)))
    assert donated.is_deleted()


def test_python_numbers_are_multiplied(check_vma):
    def f(x):
        count = jax_passing.psum(1, "d")
        assert type(count) is int
        assert jax_passing.psum((1.5, True, 2j), "d") == (6.0, 4, 8j)
        return x[: count - 3]

    assert on_mesh(f, check_vma=check_vma, out_specs=P("d"))(jnp.arange(8.0)).shape == (4,)


def test_scalars_of_numpy_are_arrays():
    """np.float64 and np.complex128 are subclasses of Python's numbers as well."""

    def f(x):
        for scalar in (np.float64(1.5), np.float32(1.5)):
            assert isinstance(jax_passing.psum(scalar, "d"), jax.Array)
            assert isinstance(jax_passing.pvary(scalar, "d"), jax.Array)
        assert type(jax_passing.pvary(1.5, "d")) is float
        return x

    on_mesh(f, out_specs=P("d"))(jnp.arange(8.0))


def test_constants_that_are_arrays(check_vma):
    constant = np.arange(3, dtype=np.float32)
    ours = on_mesh(lambda x: jax_passing.psum(constant, "d"), check_vma=check_vma)(jnp.ones(4))
    np.testing.assert_array_equal(ours, 4 * constant)


def test_pmean(check_vma):
    same_as_lax(small_numbers("float32"), check_vma=check_vma, mean=True)
    same_as_lax(small_numbers("int32"), check_vma=check_vma, mean=True)
    same_as_lax(small_numbers("bfloat16"), check_vma=check_vma, mean=True)
    same_as_lax(jnp.asarray([[True], [False], [True], [True]]), check_vma=check_vma, mean=True)  # counts


def test_unsupported_dtypes():
    with pytest.raises(UsageError, match=r"float8_e4m3fn: cast it first. Supported are bool, int8.*complex128"):
        on_mesh(lambda x: jax_passing.psum(x, "d"))(jnp.ones(4, jnp.float8_e4m3fn))
    with pytest.raises(TypeError, match="key"):
        on_mesh(lambda x: jax_passing.psum(x, "d"))(jax.random.split(jax.random.key(0), 4))


def test_unbound_axis():
    with pytest.raises(NameError, match="unbound axis name: e"):
        on_mesh(lambda x: jax_passing.psum(x, "e"))(jnp.ones(4))
    with pytest.raises(NameError, match="shard_map"):
        jax_passing.psum(jnp.ones(4), "d")
    with pytest.raises(ConfigError, match="An axis stands twice in \\('d', 'd'\\)"):
        on_mesh(lambda x: jax_passing.psum(x, ("d", "d")))(jnp.ones(4))


def test_unvarying_input_raises_with_the_remedy():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(psum, params, x):
        grads = jax.grad(lambda p: ((x * p) ** 2).sum())(params)
        return psum(grads, "d")

    def run(f):
        mapped = jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=True)
        return jax.jit(mapped)(jnp.float32(2), jnp.arange(4.0))

    with pytest.raises(UnvaryingInputError, match=r"params = jax_passing\.pvary\(params, \('d',\)\)"):
        run(lambda p, x: step(jax_passing.psum, p, x))
    with pytest.raises(ValueError, match="equal on all devices along 'd'"):
        run(lambda p, x: jax_passing.psum(p, "d"))
    for name, f in (
        ("pmean", lambda p, x: jax_passing.pmean({"loss": x.sum(), "lr": p}, "d")),
        ("psum_scatter", lambda p, x: jax_passing.psum_scatter({"lr": p * jnp.ones(4)}, "d")),
    ):
        with pytest.raises(UnvaryingInputError) as caught:
            run(f)
        assert re.match(rf"{name} over \('d',\) of float32\S* at \['lr'\], which is equal on all", str(caught.value))
        assert f"needs no {name}: leave it out of the tree, or" in str(caught.value)
        assert "cast it with jax_passing.pvary(x, ('d',))" in str(caught.value)
    with pytest.raises(UnvaryingInputError, match=r"^overlap over"):
        run(lambda p, x: jax_passing.overlap(lambda _: 2 * p, "d")(p)[0])
    remedied = run(lambda p, x: step(jax_passing.psum, jax.lax.pcast(p, ("d",), to="varying"), x))
    np.testing.assert_allclose(remedied, 2 * 2 * (0 + 1 + 4 + 9))


def test_constants_have_a_message_of_their_own():
    with pytest.raises(UnvaryingInputError, match=r"a constant that is equal on all devices.*jax_passing\.axis_size"):
        on_mesh(lambda x: x + jax_passing.psum(jnp.ones(3), "d"), check_vma=True, out_specs=P("d"))(jnp.ones(12))


@pytest.mark.parametrize("bucket_bytes", [0, -1, 1.5, True, "1", None])
def test_bucket_bytes_is_validated(bucket_bytes):
    with pytest.raises(ConfigError, match="bucket_bytes=.*whole number of bytes"):
        on_mesh(lambda x: jax_passing.psum(x, "d", bucket_bytes=bucket_bytes))(jnp.ones(4))


def test_over_no_axis_it_is_the_identity(check_vma):
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(
        on_mesh(lambda x: jax_passing.psum(x, ()), check_vma=check_vma, out_specs=P("d"))(x), x
    )
    assert jax_passing.psum(3, ()) == 3


def test_each_call_has_a_name_of_its_own():
    def helper(x):
        return jax_passing.psum(x, "d")

    def program(x):
        first = helper(x) + helper(2 * x)
        return first + sum(helper(i * x) for i in range(3))

    found = sites(jax.make_jaxpr(jax.jit(on_mesh(program)))(jnp.ones(4)).jaxpr)
    assert len({(site.location, site.call) for site in found}) == 5
    assert all(site.location.frames[0].startswith("test_psum.py:") for site in found)
    assert [site.call for site in found] == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("axis_name", [(), ("d",)], ids=["inside the host", "declared"])
def test_the_gradient_of_what_pvary_cast_is_the_sum(session, axis_name, check_vma):
    session.shutdown()
    with jax_passing.init(world_size=1, rank=0, axis_name=axis_name):

        def step(p, x):
            return jax.grad(lambda p: (jax_passing.pvary(p, "d") * x).sum())(p)

        x = jnp.arange(4.0)
        assert on_mesh(step, in_specs=(P(), P("d")), check_vma=check_vma)(jnp.float32(2), x) == 6
        mapped = jax.vmap(lambda x: step(jnp.float32(2), x), axis_name="d")
        np.testing.assert_array_equal(mapped(x), [6] * 4)


def test_per_host_gradients_are_summed_inside_the_host(monkeypatch):
    def grads(p, x):
        return jax.grad(lambda p: (p * x).sum())(p)

    program = on_mesh(grads, in_specs=(P(), P("d")), check_vma=True)
    two_hosts = scope.current()._replace(axis_names=("d",), world_size=2)
    monkeypatch.setattr(scope, "_session", two_hosts)
    for opened, ours in ((contextlib.nullcontext(), 1), (jax_passing.per_host_gradients(), 0)):
        with scope.within(two_hosts), opened:
            jaxpr = jax.make_jaxpr(program)(jnp.float32(2), jnp.arange(4.0))
        assert len(psums(jaxpr.jaxpr)) == ours
