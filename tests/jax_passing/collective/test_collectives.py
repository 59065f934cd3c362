"""Our collectives beside those of JAX, on one host whose axes are declared."""

# ruff: noqa: B008, B023 (each function is called in the loop that makes it)

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.jax.lowered_sums import specs

import jax_passing
from jax_passing._compat import jaxprs
from jax_passing.collective.naming.sites import canonical
from jax_passing.errors import (
    ConfigError,
    GradientError,
    NotInitializedError,
    RankZeroError,
    ThreadError,
    UnsupportedDtypeError,
)

pytestmark = pytest.mark.usefixtures("session")

NARROW = ["bool", "int4", "uint4", "int8", "int16", "int32", "uint8", "uint16", "uint32"]
FLOATS = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"]
X64 = ["int64", "uint64", "float64"]


def on_mesh(f, *, check_vma=False, in_specs=P("d"), out_specs=P("d"), devices=4):
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def on_grid(f, *, check_vma=False, in_specs=P(("d", "m")), out_specs=P(("d", "m"))):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def any_bits(dtype, shape, seed=0):
    """Of all kinds: numbers of any size and sign, NaN with a payload, infinities, denormals."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
    if dtype == "bool":
        bits &= 1
    if dtype in ("int4", "uint4"):
        return jnp.asarray(bits[..., 0] >> 4, np.uint8).astype(dtype)
    if dtype == "float8_e5m2":
        bits[(bits & 0x7F) == 0x7D] |= 2  # jaxlib 0.12 makes these quiet NaN wherever it copies them
    return jnp.asarray(bits.view(jnp.dtype(dtype))[..., 0])


def numbers(dtype, shape, seed=0):
    """Of any bits, but NaN."""
    array = any_bits(dtype, shape, seed)
    if jnp.issubdtype(dtype, jnp.floating):
        array = jnp.where(
            jnp.isnan(array.astype(np.float32) if array.itemsize < 4 else array), jnp.ones_like(array), array
        )
    return array


def same_bits(ours, theirs):
    assert jax.tree.map(lambda a: (a.shape, a.dtype), ours) == jax.tree.map(lambda a: (a.shape, a.dtype), theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        mine, other = np.asarray(mine), np.asarray(other)
        assert mine.tobytes() == other.tobytes(), (mine, other)


def same(ours, theirs, *args, **options):
    same_bits(on_mesh(ours, **options)(*args), on_mesh(theirs, **options)(*args))


# pmax, pmin


@pytest.mark.parametrize("dtype", NARROW + FLOATS + X64)
def test_extremes_of_every_dtype(dtype):
    def extremes(x):
        return jax_passing.pmax(x, "d"), jax_passing.pmin(x, "d")

    with jax.enable_x64(dtype in X64):
        x = numbers(dtype, (4, 500), seed=1)
        results = on_mesh(extremes, check_vma=len(dtype) % 2 == 0, out_specs=P())(x)
        # Not beside jax.lax, which flushes denormals here, and loses NaN in some orders of the devices.
        wide = np.asarray(x).astype(np.float64 if jnp.issubdtype(dtype, jnp.floating) else object)
        for result, expected in zip(results, (np.max(wide, axis=0), np.min(wide, axis=0)), strict=True):
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(np.asarray(result[0]).astype(wide.dtype), expected)


@pytest.mark.parametrize("dtype", X64)
def test_extremes_that_only_the_lower_halves_decide(dtype):
    with jax.enable_x64(True):
        bits = np.array([[2**40 + 1, 2**33], [2**40 + 2**31, 2**33 - 1], [2**40, 2**33 + 5], [3, 2**33 + 2**32 - 1]])
        for sign in (1, -1):
            x = jnp.asarray((bits if dtype == "float64" else bits * sign).astype(np.int64).view(np.dtype(dtype)))
            x = x * sign if dtype == "float64" else x
            for name in ("pmax", "pmin"):
                ours = on_mesh(lambda x, name=name: getattr(jax_passing, name)(x, "d"), out_specs=P())(x)
                np.testing.assert_array_equal(ours[0], getattr(np, name[1:])(np.asarray(x), axis=0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_extremes_of_nan_infinities_and_zeros(dtype, check_vma):
    with jax.enable_x64(dtype == "float64"):
        columns = [[1, np.nan, -2, 3], [-np.inf, 5, np.inf, 0], [-np.inf] * 4, [0.0, -0.0, -0.0, -0.0], [-0.0] * 4]
        x = jnp.asarray(np.array(columns).T, dtype)
        largest = on_mesh(lambda x: jax_passing.pmax(x, "d"), check_vma=check_vma, out_specs=P())(x)[0]
        smallest = on_mesh(lambda x: jax_passing.pmin(x, "d"), check_vma=check_vma, out_specs=P())(x)[0]
        np.testing.assert_array_equal(largest.astype(np.float32), [np.nan, np.inf, -np.inf, 0, 0])
        np.testing.assert_array_equal(smallest.astype(np.float32), [np.nan, -np.inf, -np.inf, 0, 0])
        assert [bool(sign) for sign in jnp.signbit(largest[3:])] == [False, True]
        assert [bool(sign) for sign in jnp.signbit(smallest[3:])] == [True, True]


def test_extremes_of_trees_scalars_and_constants(check_vma):
    tree = {"a": numbers("float32", (4, 3)), "b": [numbers("uint8", (4, 2, 5))]}

    def f(of, x):
        x = jax.tree.map(lambda leaf: leaf[0], x)
        return of((x, 3, np.arange(2.0, dtype=np.float32)), "d")

    same(
        functools.partial(f, jax_passing.pmax),
        functools.partial(f, jax.lax.pmax),
        tree,
        check_vma=check_vma,
        out_specs=P(),
    )
    assert on_mesh(lambda x: jax_passing.pmax((), "d"), check_vma=check_vma)(tree) == ()
    # Not beside jax.lax: jaxlib 0.11.2 dies of the maximum of an empty array.
    empty = on_mesh(lambda x: jax_passing.pmax(x[0], "d"), check_vma=check_vma, out_specs=P())(
        jnp.ones((4, 0), jnp.int32)
    )
    assert (empty.shape, empty.dtype) == ((0,), jnp.int32)


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_extremes_over_an_axis_of_vmap(name):
    x = numbers("float32", (8, 6, 3))
    for axes in ("v", ("v", "d"), ("d", "v"), "d"):
        results = [
            on_mesh(jax.vmap(lambda x, of=of: of(x, axes), axis_name="v", in_axes=1, out_axes=1), out_specs=P("d"))(x)
            for of in (getattr(jax_passing, name), getattr(jax.lax, name))
        ]
        np.testing.assert_array_equal(*results)
    results = [
        jax.vmap(lambda x, of=of: of(x, "v"), axis_name="v")(x)
        for of in (getattr(jax_passing, name), getattr(jax.lax, name))
    ]
    same_bits(*results)


def test_extremes_have_no_gradient(check_vma):
    x = numbers("float32", (4,))
    f = on_mesh(lambda x: x * jax_passing.pmax(x, "d"), check_vma=check_vma)
    with pytest.raises(GradientError, match="pmax at test_collectives.py.*stop_gradient"):
        jax.grad(lambda x: f(x).sum())(x)
    g = on_mesh(lambda x: x * jax_passing.pmin(jax.lax.stop_gradient(x), "d"), check_vma=check_vma)
    np.testing.assert_array_equal(jax.grad(lambda x: g(x).sum())(x), jnp.full(4, x.min()))


def test_extremes_of_other_dtypes():
    with pytest.raises(UnsupportedDtypeError, match="complex64"):
        on_mesh(lambda x: jax_passing.pmax(x, "d"))(jnp.ones(4, np.complex64))


# all_gather, psum_scatter


@pytest.mark.parametrize("dtype", [*NARROW, *FLOATS, *X64, "complex64", "complex128", "float4_e2m1fn"])
def test_all_gather_moves_the_bits_of_every_dtype(dtype):
    with jax.enable_x64(dtype in X64 or dtype == "complex128"):
        if dtype == "float4_e2m1fn":
            x = jax.lax.bitcast_convert_type(any_bits("uint4", (4, 3, 7)), dtype)
        else:
            x = any_bits(dtype, (4, 3, 7))
        f = on_mesh(lambda x: jax_passing.all_gather(x, "d", tiled=True), check_vma=len(dtype) % 2 == 0)
        gathered = f(x)
        # Not beside jax.lax, which turns signalling NaN into quiet ones here.
        same_bits(gathered, jnp.tile(x, (4, 1, 1)))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_all_gather_along_every_dimension(axis, tiled, check_vma):
    x = numbers("float16", (8, 3, 5))
    options = {"axis": axis, "tiled": tiled}
    same(
        lambda x: jax_passing.all_gather(x, "d", **options),
        lambda x: jax.lax.all_gather(x, "d", **options),
        x,
        check_vma=check_vma,
    )


def test_all_gather_of_trees_scalars_and_nothing(check_vma):
    tree = {"a": numbers("float32", (4, 3)), "b": [numbers("int8", (4, 0)), numbers("uint16", (4,))]}

    def f(of, x):
        gathered = of((jax.tree.map(lambda leaf: leaf[0], x), 2.0), "d")
        assert gathered[0]["b"][0].shape == (4, 0)
        return gathered[0]["a"], gathered[0]["b"][1], gathered[1]

    same(
        functools.partial(f, jax_passing.all_gather),
        functools.partial(f, jax.lax.all_gather),
        tree,
        check_vma=check_vma,
    )
    assert on_mesh(lambda x: jax_passing.all_gather(x[:0], "d")[0], check_vma=check_vma)(jnp.ones(4)).shape == (0,)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "float32", "bfloat16", "complex64"])
@pytest.mark.parametrize("tiled", [False, True])
def test_psum_scatter(dtype, tiled, check_vma):
    small = np.random.default_rng(0).integers(0, 8, (4, 2, 8 if tiled else 4, 3))
    x = jnp.asarray(small, dtype)
    options = {"scatter_dimension": 1, "tiled": tiled}
    same(
        lambda x: jax_passing.psum_scatter(x[0], "d", **options),
        lambda x: jax.lax.psum_scatter(x[0], "d", **options),
        x,
        check_vma=check_vma,
    )


def test_over_two_axes(check_vma):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 9, (16, 8)), np.float32)
    for axes in (("d", "m"), "d", "m"):
        size = {"d": 4, "m": 2}.get(axes, 8)
        for ours, theirs in (
            (lambda x: jax_passing.all_gather(x, axes), lambda x: jax.lax.all_gather(x, axes)),
            (
                lambda x: jax_passing.psum_scatter(x[:, :size], axes, scatter_dimension=1),
                lambda x: jax.lax.psum_scatter(x[:, :size], axes, scatter_dimension=1),
            ),
        ):
            same_bits(on_grid(ours, check_vma=check_vma)(x), on_grid(theirs, check_vma=check_vma)(x))
    # JAX orders the devices as the mesh does; we as the axes are named, like axis_index.
    index = on_grid(
        lambda x: jax_passing.all_gather(jax_passing.axis_index(("m", "d")), ("m", "d")), check_vma=check_vma
    )
    np.testing.assert_array_equal(index(x).reshape(8, 8), np.tile(np.arange(8), (8, 1)))


def test_dimensions_that_do_not_fit(check_vma):
    with pytest.raises(ValueError, match="axis 3 is out of bounds"):
        on_mesh(lambda x: jax_passing.all_gather(x, "d", axis=3), check_vma=check_vma)(jnp.ones((4, 2)))
    with pytest.raises(ConfigError, match="dimension 1 has size 3, but there are 4 devices.*tiled=True"):
        on_mesh(lambda x: jax_passing.psum_scatter(x, "d", scatter_dimension=1), check_vma=check_vma)(jnp.ones((4, 3)))
    with pytest.raises(ConfigError, match="a multiple of"):
        on_mesh(lambda x: jax_passing.psum_scatter(x, "d", tiled=True), check_vma=check_vma)(jnp.ones((24, 3)))
    with pytest.raises(UnsupportedDtypeError, match="bool"):
        on_mesh(lambda x: jax_passing.psum_scatter(x, "d"), check_vma=check_vma)(jnp.ones((16, 3), np.bool_))
    with pytest.raises(UnsupportedDtypeError, match="key_data"):
        on_mesh(lambda x: jax_passing.all_gather(x, "d"), check_vma=check_vma)(jax.random.split(jax.random.key(0), 4))


def gathering(lax):
    of = jax.lax if lax else jax_passing

    def f(x):
        gathered = of.all_gather(jnp.sin(x), "d", axis=1, tiled=True)
        weighted = gathered * jnp.cos(jnp.arange(gathered.size, dtype=x.dtype)).reshape(gathered.shape)
        return of.psum_scatter(weighted * x.sum(), "d", scatter_dimension=1, tiled=True)

    return f


def test_gradients_of_gathers(check_vma):
    x = jax.random.normal(jax.random.key(0), (8, 3))
    t = jax.random.normal(jax.random.key(1), (8, 3))
    ours, theirs = (on_mesh(gathering(lax), check_vma=check_vma) for lax in (False, True))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    for of_x in (
        lambda f: f(x),
        lambda f: jax.jvp(f, (x,), (t,)),
        lambda f: jax.vjp(f, x)[1](t),
        lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(x),
        lambda f: jax.jit(jax.grad(lambda x: jax.grad(lambda x: (f(x) ** 3).sum())(x).sum()))(x),
        lambda f: jax.linearize(f, x)[1](t),
        lambda f: jax.grad(lambda x: (jax.checkpoint(f)(x) ** 2).sum())(x),
        lambda f: jax.grad(lambda x: (jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0] ** 2).sum())(x),
    ):
        jax.tree.map(close, of_x(ours), of_x(theirs))
    inside = [
        on_mesh(jax.grad(lambda x, f=gathering(lax): (f(x) ** 2).sum()), check_vma=check_vma)(x)
        for lax in (False, True)
    ]
    close(*inside)


def test_the_gradient_of_a_gather_is_a_scatter_and_the_reverse(check_vma):
    text = str(
        jax.make_jaxpr(jax.grad(lambda x: on_mesh(gathering(False), check_vma=check_vma)(x).sum()))(jnp.ones((8, 3)))
    )
    assert text.count("passing_all_gather[") == text.count("passing_psum_scatter[") == 2


def test_gathers_over_an_axis_of_vmap():
    x = jax.random.normal(jax.random.key(0), (4, 5, 3))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)

    def batched(lax, axes, reference_axes):
        of = jax.lax if lax else jax_passing

        def f(x):
            y = of.all_gather(jnp.sin(x), reference_axes if lax else axes)
            return of.psum_scatter(y * x.sum(), reference_axes if lax else axes)

        return f

    def over_v(f):
        return jax.vmap(f, axis_name="v", in_axes=1, out_axes=1)

    for axes in ("v", "d"):
        ours, theirs = (on_mesh(over_v(batched(lax, axes, axes))) for lax in (False, True))
        for of_x in (lambda f: f(x), jax.vmap, lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x)):
            if of_x is not jax.vmap:
                jax.tree.map(close, of_x(ours), of_x(theirs))
    # JAX has no rule for several axes at once: compare with a mesh that has them all.
    mine = on_mesh(over_v(batched(False, ("v", "d"), None)))
    wide = jax.make_mesh((5, 1), ("v", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:5])
    theirs = jax.jit(
        jax.shard_map(
            lambda x: jax.vmap(batched(False, ("v", "b"), None), axis_name="b")(x[:, 0])[:, None],
            mesh=wide, in_specs=P(None, "v"), out_specs=P(None, "v"), check_vma=False,
        )
    )  # fmt: skip
    for of_x in (lambda f: f(x), lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x)):
        close(of_x(lambda x: mine(x)), of_x(theirs))
    expected = np.sin(x).transpose(1, 0, 2).reshape(20, 3)
    gathered = on_mesh(over_v(lambda x: jax_passing.all_gather(jnp.sin(x)[0], ("v", "d"))))(x)
    close(gathered[:20, 0], expected)
    close(jax.vmap(lambda x: jax_passing.all_gather(x, "v")[0], axis_name="v", in_axes=None, axis_size=3)(x)[1], x)
    close(jax.vmap(lambda x: jax_passing.psum_scatter(x, "v"), axis_name="v", in_axes=None, axis_size=4)(x), 4 * x)


def test_types_under_check_vma_are_those_of_lax():
    def f(x):
        for ours, theirs in (
            (jax_passing.pmax(x, "d"), jax.lax.pmax(x, "d")),
            (jax_passing.all_gather(x, "d"), jax.lax.all_gather(x, "d")),
            (jax_passing.psum_scatter(x, "d", tiled=True), jax.lax.psum_scatter(x, "d", tiled=True)),
            (jax_passing.broadcast(x, "d"), jax.lax.psum(x, "d")),
        ):
            assert jax.typeof(ours) == jax.typeof(theirs)
        return x

    on_mesh(f, check_vma=True)(jnp.ones((16, 2)))


def test_pmap():
    x = numbers("float32", (4, 4, 3))
    for ours, theirs in (
        (lambda x: jax_passing.all_gather(x, "i"), lambda x: jax.lax.all_gather(x, "i")),
        (lambda x: jax_passing.pmax(x, "i"), lambda x: jax.lax.pmax(x, "i")),
        (lambda x: jax_passing.psum_scatter(x, "i"), lambda x: jax.lax.psum_scatter(x, "i")),
    ):
        results = [jax.pmap(f, axis_name="i", devices=jax.devices()[:4])(x) for f in (ours, theirs)]
        np.testing.assert_allclose(*results, rtol=1e-6)


def test_without_jit(check_vma):
    x = numbers("float32", (4, 3))
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    for ours, theirs in (
        (lambda x: jax_passing.all_gather(x, "d"), lambda x: jax.lax.all_gather(x, "d")),
        (lambda x: jax_passing.broadcast(x, "d", root=2)[None], lambda x: jax.lax.all_gather(x, "d")[2][None]),
    ):
        results = [
            jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)(x)
            for f in (ours, theirs)
        ]
        same_bits(*results)


# broadcast


@pytest.mark.parametrize("dtype", [*NARROW, *FLOATS, *X64, "complex64"])
def test_broadcast_of_every_dtype(dtype):
    def both(x):
        return [jax_passing.broadcast(x[0], "d", root=root) for root in (0, 3)]

    with jax.enable_x64(dtype in X64):
        x = any_bits(dtype, (4, 3, 7))
        same_bits(on_mesh(both, check_vma=len(dtype) % 2 == 0, out_specs=P())(x), [x[0], x[3]])


def test_broadcast_of_trees_over_two_axes_and_over_vmap(check_vma):
    tree = {"a": numbers("float32", (8, 3)), "b": numbers("int8", (8,))}
    f = on_grid(lambda x: jax_passing.broadcast(x, ("m", "d"), root=6), check_vma=check_vma, out_specs=P())
    same_bits(f(tree), jax.tree.map(lambda leaf: leaf[2 * 2 + 1][None], tree))  # index 6 = m 1, d 2
    x = numbers("float32", (4, 5, 3))
    for axes, root in (("v", 3), (("v", "d"), 3 * 4 + 2), (("d", "v"), 2 * 5 + 3)):
        over_v = jax.vmap(lambda x: jax_passing.broadcast(x, axes, root=root), axis_name="v", in_axes=1, out_axes=1)
        result = on_mesh(over_v)(x)
        expected = x[:, 3:4] if axes == "v" else x[2:3, 3:4]
        np.testing.assert_array_equal(result, jnp.broadcast_to(expected, x.shape))


def test_gradients_of_broadcast(check_vma):
    x = jax.random.normal(jax.random.key(0), (4, 3))

    def with_lax(x):
        return jax.lax.psum(jnp.where(jax.lax.axis_index("d") == 2, x, jnp.zeros_like(x)), "d")

    def ours(x):
        return jax_passing.broadcast(x, "d", root=2)

    def f(of):
        return on_mesh(lambda x: jnp.sin(x) * of(x**2), check_vma=check_vma)

    for of_x in (
        lambda f: jax.jvp(f, (x,), (x + 1,)),
        lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x),
        lambda f: jax.grad(lambda x: jax.grad(lambda x: (f(x) ** 3).sum())(x).sum())(x),
        lambda f: jax.jacfwd(f)(x),
        lambda f: jax.jacrev(f)(x),
    ):
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), of_x(f(ours)), of_x(f(with_lax))
        )


@pytest.mark.parametrize("root", [-1, 4, True, 1.0, None])
def test_root_is_validated(root):
    with pytest.raises(ConfigError, match="from root=.*expected an index from 0 to 3"):
        on_mesh(lambda x: jax_passing.broadcast(x, "d", root=root))(jnp.ones(4))


# What names them.


def identities(program, *args):
    found = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("passing_"):
                found.append(equation.params["site"])
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                walk(getattr(inner, "jaxpr", inner))

    walk(jax.make_jaxpr(program)(*args).jaxpr)
    return [
        canonical(site.identity(name_stack="", calls=[], axes=["d"], op="sum", leaves=[""] * len(site.paths)))
        for site in found
    ]


def test_what_hosts_do_differently_has_another_identity():
    """At one place of the program: another function, root, or type of the same size."""

    def program(function, *dtypes):
        return identities(on_mesh(lambda x: function(x.astype(dtypes[0])), out_specs=P("d")), jnp.ones((16, 4)))

    functions = [
        lambda x: jax_passing.psum(x, "d"),
        lambda x: jax_passing.pmax(x, "d"),
        lambda x: jax_passing.pmin(x, "d"),
        lambda x: jax_passing.all_gather(x, "d"),
        lambda x: jax_passing.psum_scatter(x, "d"),
        lambda x: jax_passing.broadcast(x, "d"),
        lambda x: jax_passing.broadcast(x, "d", root=1),
    ]
    named = [identity for f in functions for dtype in ("float32", "int32") for identity in program(f, dtype)]
    stripped = {(i.split('"function"')[1].split('"further"')[0], i.split('"types"')[1]) for i in named}
    assert len(named) == 14
    assert len(stripped) == 1 + 2 * (len(functions) - 1)  # psum says its type in "leaves"


def test_they_are_known_to_hold_sums():
    """So jitted functions, loops and branches with them are lowered as those with sums are: in the program's order."""
    for function in (
        lambda x: jax_passing.pmin(x, "d"),
        lambda x: jax_passing.all_gather(x, "d")[0],
        lambda x: jax_passing.psum_scatter(x, "d", tiled=True),
        lambda x: jax_passing.broadcast(x, "d"),
    ):
        helper = jax.jit(function)

        def program(x, helper=helper):
            return jax.lax.scan(lambda c, _: (c + helper(c).sum() * helper(2 * c).sum(), None), x, None, length=2)[0]

        mapped = on_mesh(program)
        assert jaxprs.holds_sums(jax.make_jaxpr(mapped)(jnp.ones(16)).jaxpr)
        sites = [spec["site"] for spec in specs(mapped.lower(jnp.ones(16)).as_text())]
        assert len(sites) == len(set(sites)) == 2
        mapped(jnp.ones(16)).block_until_ready()


# axis names


def test_over_no_axis_and_without_session(session, check_vma):
    x = jnp.arange(4.0)
    functions = (jax_passing.pmax, jax_passing.all_gather, jax_passing.psum_scatter, jax_passing.broadcast)
    for function in functions:
        same(lambda x, function=function: function(x, ()), lambda x: x, x, check_vma=check_vma)
        with pytest.raises(NameError, match="unbound axis name: e"):
            on_mesh(lambda x, function=function: function(x, "e"), check_vma=check_vma)(x)
    session.shutdown()
    for function in functions:
        with pytest.raises(NotInitializedError, match=r"jax_passing\.init\(\)"):
            on_mesh(lambda x, function=function: function(x, "d"), check_vma=check_vma)(x)
    assert jax.eval_shape(on_mesh(lambda x: jax_passing.pmax(x, "d")), x).shape == (4,)


def test_axes_that_are_not_declared_are_left_to_jax():
    def program(x):
        return (
            jax_passing.pmax(x, "e"),
            jax_passing.pmin(x, "e"),
            jax_passing.all_gather(x, "e"),
            jax_passing.psum_scatter(x, "e", scatter_dimension=1, tiled=True),
        )

    mesh = jax.make_mesh((4,), ("e",), axis_types=(jax.sharding.AxisType.Auto,))
    for check_vma in (False, True):
        mapped = jax.shard_map(
            program, mesh=mesh, in_specs=P("e"), out_specs=(P(), P(), P("e"), P("e")), check_vma=check_vma
        )
        assert "passing" not in str(jax.make_jaxpr(mapped)(jnp.ones((4, 4))))
        broadcast = jax.shard_map(
            lambda x: jax_passing.broadcast(x, "e", root=3),
            mesh=mesh,
            in_specs=P("e"),
            out_specs=P(),
            check_vma=check_vma,
        )
        np.testing.assert_array_equal(jax.jit(broadcast)(jnp.arange(4.0)), [3])


# process_sum, barrier


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float32", "float64", "bfloat16", "complex128"]
)
def test_process_sum_of_one_host(dtype):
    x = np.random.default_rng(0).integers(0, 2**6, (3, 5)).astype(jnp.dtype(dtype))
    result = jax_passing.process_sum({"a": x, "b": [x[0, 0], x[:0]]})
    expected = x.astype(np.int32) if dtype == "bool" else x
    assert isinstance(result["a"], np.ndarray)
    assert result["a"].dtype == result["b"][1].dtype == expected.dtype
    np.testing.assert_array_equal(result["a"], expected)
    assert result["b"][0] == expected[0, 0]
    assert result["b"][1].shape == (0, 5)


def test_process_sum_of_numbers_and_jax_arrays():
    assert jax_passing.process_sum(2**53 + 1) == 2**53 + 1
    assert jax_passing.process_sum((0.1, True, 1 + 2j)) == (0.1, 1, 1 + 2j)
    assert type(jax_passing.process_sum(1.5)) is np.float64
    np.testing.assert_array_equal(jax_passing.process_sum(jnp.arange(3)), np.arange(3))
    assert jax_passing.process_sum({}) == {}
    with pytest.raises(UnsupportedDtypeError, match="process_sum of int of dtype object; supported"):
        jax_passing.process_sum(2**70)
    with pytest.raises(UnsupportedDtypeError, match=r"process_sum of str of dtype str\d* at \['loss'\]; supported"):
        jax_passing.process_sum({"loss": "text"})


def test_process_sum_does_not_depend_on_the_mesh_that_is_set():
    explicit = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(explicit), jax.numpy_dtype_promotion("strict"):
        assert jax_passing.process_sum(np.float32(2)) == 2
        jax_passing.barrier()


def test_process_sum_and_barrier_in_traced_code():
    for transform in (jax.jit, jax.vmap, jax.grad):
        with pytest.raises(ConfigError, match=r"process_sum is for values that are known.*use jax_passing\.psum"):
            transform(lambda x: x.sum() * jax_passing.process_sum(x))(jnp.ones(3) if transform is not jax.grad else 1.0)
    for f in (jax_passing.barrier, lambda: jax_passing.process_sum(1), lambda: jax_passing.on_rank_zero(int)):
        with pytest.raises(ConfigError, match="here JAX traces"):
            jax.jit(f)()


def test_what_fails_on_rank_zero_is_told_whatever_its_text(session):
    def fail():
        raise FileNotFoundError(2, "None", "\udcff" + "x" * 2000)

    with pytest.raises(RankZeroError, match="failed there: FileNotFoundError: .Errno 2. None: '.*xxx$") as caught:
        jax_passing.on_rank_zero(fail)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert jax_passing.on_rank_zero(lambda: 7) is None


def test_process_sum_and_barrier_without_a_session_or_on_another_thread(session):
    raised = []

    def run():
        for f in (
            lambda: jax_passing.process_sum(1),
            jax_passing.barrier,
            lambda: jax_passing.lax_over_hosts().__enter__(),
        ):
            try:
                f()
            except ThreadError as error:
                raised.append(error)
        with jax_passing.stream("beside"):
            jax_passing.barrier()
            assert jax_passing.process_sum(3) == 3
            raised.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert len(raised) == 4
    jax_passing.barrier()
    session.shutdown()
    for f in (lambda: jax_passing.process_sum(1), jax_passing.barrier):
        with pytest.raises(NotInitializedError, match=r"call jax_passing\.init"):
            f()


def test_process_sum_compiles_once_for_each_place():
    from jax_passing.collective.process_sum import _program

    before = _program.cache_info().misses
    for value in range(5):
        assert jax_passing.process_sum(value) == value
    assert _program.cache_info().misses == before + 1
