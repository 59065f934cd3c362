"""Collectives and transforms as one table, which a session of one host and sums by calls of Python are tested with.

A function takes the operations, ours or those of `jax.lax`, and one device's rows. What all devices must get is what
`jax.lax` gives to one vmap over the rows of all of them, and for each dtype what numpy does.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jax_passing
from support.jax import on_mesh as meshes
from support.jax.as_lax import apart

NARROW = ["bool", "int4", "uint4", "int8", "int16", "int32", "uint8", "uint16", "uint32"]
FLOATS = ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32"]
X64 = ["int64", "uint64", "float64"]
COMPLEX = ["complex64", "complex128"]
SUMMED = [dtype for dtype in [*NARROW, *X64, *FLOATS, *COMPLEX] if "int4" not in dtype and "float8" not in dtype]

on_mesh = partial(meshes.on_mesh, devices=4)


def on_grid(f, *, check_vma=False, in_specs=P(("d", "m")), out_specs=P(("d", "m"))):
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))


def any_bits(dtype, shape, seed=0):
    """Returns elements of all kinds: numbers of any size and sign, NaN with a payload, infinities, denormals."""
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
    if dtype == "bool":
        bits &= 1
    if dtype in ("int4", "uint4"):
        return jnp.asarray(bits[..., 0] >> 4, np.uint8).astype(dtype)
    if dtype == "float8_e5m2":
        bits[(bits & 0x7F) == 0x7D] |= 2  # jaxlib 0.12 makes these quiet NaN wherever it copies them
    if dtype == "bfloat16":  # without its fusion emitters, XLA makes other NaN of these
        bits[..., 1][(bits[..., 1] & 0x7F) == 0x7F] &= 0xBF
    return jnp.asarray(bits.view(jnp.dtype(dtype))[..., 0])


def numbers(dtype, shape, seed=0):
    """Returns numbers of any bits, but no NaN."""
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


# The table.

Body = Callable[[Any], Any]


def broadcast_by_lax(x: Any, axis: str, root: int) -> Any:
    return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == root, x, jnp.zeros_like(x)), axis)


NAMES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter")
OURS = SimpleNamespace(
    **{name: getattr(jax_passing, name) for name in (*NAMES, "broadcast")},
    psum_apart=apart,
    psum_in_buckets=partial(jax_passing.psum, bucket_bytes=1),
)
LAX = SimpleNamespace(
    **{name: getattr(jax.lax, name) for name in NAMES},
    broadcast=broadcast_by_lax,
    psum_apart=jax.lax.psum,
    psum_in_buckets=jax.lax.psum,
)

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "psum": lambda of, x: of.psum((x, jnp.sin(x)), "d"),
    "psum in buckets": lambda of, x: of.psum_in_buckets({"a": x[0], "b": [x * 2, jnp.sin(x[:1])]}, "d"),
    "psum in two parts": lambda of, x: of.psum_apart(x, "d"),
    "pmean": lambda of, x: of.pmean(x, "d"),
    "pmax": lambda of, x: x * of.pmax(jax.lax.stop_gradient(x), "d"),
    "pmin": lambda of, x: x * of.pmin(jax.lax.stop_gradient(x), "d"),
    "all_gather": lambda of, x: of.all_gather(x, "d", axis=1),
    "tiled all_gather": lambda of, x: of.all_gather(x, "d", axis=1, tiled=True),
    "psum_scatter": lambda of, x: of.psum_scatter(x, "d"),
    "tiled psum_scatter": lambda of, x: of.psum_scatter(x, "d", scatter_dimension=1, tiled=True),
    "broadcast": lambda of, x: of.broadcast(x, "d", root=1),
}


def loss(f: Body) -> Body:
    """It varies over the devices, each of whose gradients is that of the sum of all devices' losses."""

    def of(x: Any) -> Any:
        leaves = [jnp.sin(leaf) * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape) for leaf in jax.tree.leaves(f(x))]
        return sum(jnp.sum(leaf) for leaf in leaves) * jnp.sum(x)

    return of


def step(f: Body) -> Body:
    """The shape of its result is that of its argument."""
    return lambda x: x * (0.5 + 0.1 * jnp.tanh(sum(jnp.mean(leaf) for leaf in jax.tree.leaves(f(x)))))


def in_scan(f: Body) -> Body:
    return lambda x: jax.lax.scan(lambda y, k: (step(f)(y + k), step(f)(y)), x, jnp.arange(3, dtype=x.dtype))


def in_cond(f: Body) -> Body:
    """It takes one branch, and then the other one."""
    return lambda x: [jax.lax.cond(jnp.sum(x) < bound, f, lambda x: f(jnp.cos(x)), x) for bound in (np.inf, -np.inf)]


def custom_derivative(f: Body) -> Body:
    """Its backward rule sums."""
    g = jax.custom_vjp(lambda x: jnp.tanh(x))
    g.defvjp(lambda x: (jnp.tanh(x), x), lambda x, ct: (step(f)(ct * x),))
    return g


TRANSFORMS: dict[str, Callable[[Body, Any], Any]] = {
    "none": lambda f, x: f(x),
    "jit, called twice": lambda f, x: (lambda g: (g(x), g(2 * x)))(jax.jit(f)),
    "vmap": lambda f, x: jax.vmap(f)(jnp.stack([x, jnp.sin(x)])),
    "vmap of what has no such axis": lambda f, x: jax.vmap(lambda i: step(f)(x) + i)(jnp.arange(3, dtype=x.dtype)),
    "jvp": lambda f, x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "linearize": lambda f, x: jax.linearize(f, x)[1](jnp.cos(x)),
    "grad": lambda f, x: jax.grad(loss(f))(x),
    "vmap of grad": lambda f, x: jax.vmap(jax.grad(loss(f)))(jnp.stack([x, jnp.sin(x)])),
    "jvp of grad": lambda f, x: jax.jvp(jax.grad(loss(f)), (x,), (jnp.cos(x),))[1],
    "grad of grad": lambda f, x: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss(f))(x) / 100)) * jnp.sum(x))(x),
    "scan": lambda f, x: in_scan(f)(x),
    "grad of scan": lambda f, x: jax.grad(loss(in_scan(f)))(x),
    "while": lambda f, x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, step(f)(c[1])), (0, x))[1],
    "cond": lambda f, x: in_cond(f)(x),
    "grad of cond": lambda f, x: jax.grad(loss(in_cond(f)))(x),
    "grad of checkpoint": lambda f, x: jax.grad(loss(jax.checkpoint(f)))(x),
    "custom_vjp": lambda f, x: jax.grad(loss(custom_derivative(f)))(x),
}


BY_CALLS_OF_PYTHON = ("vmap", "jvp of grad", "grad of scan", "while", "grad of cond", "grad of checkpoint")


def body(of: Any, transform: str, names: Iterable[str] = FUNCTIONS) -> Body:
    """All these functions under this transform, of one device's rows."""
    return lambda x: TRANSFORMS[transform](lambda x: {name: FUNCTIONS[name](of, x) for name in names}, x)


def rows_of(devices: int) -> np.ndarray:
    """float32[devices, devices, 2 devices]"""
    return np.random.default_rng(devices).normal(size=(devices, devices, 2 * devices)).astype(np.float32)


def over_rows(f: Body, **options: Any) -> Any:
    """Runs `f` on each device of a mesh, of its own row, and returns all results."""
    of_one = lambda rows: jax.tree.map(lambda y: y[None], f(jax.tree.map(lambda x: x[0], rows)))  # noqa: E731
    return on_mesh(of_one, out_specs=P("d"), **options)


def by_lax(transform: str, names: Iterable[str] = FUNCTIONS) -> Any:
    """Returns what gives all devices' results of all devices' rows."""
    return jax.jit(jax.vmap(body(LAX, transform, names), axis_name="d"))


def check(got: Any, wanted: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for path, theirs in jax.tree.leaves_with_path(wanted):
        mine = dict(jax.tree.leaves_with_path(got))[path]
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), path
        bound = 3e-5 * np.abs(theirs).max()
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=bound, err_msg=jax.tree_util.keystr(path))


def rows_of_every_dtype(devices: int) -> dict[str, dict[str, jax.Array]]:
    """Returns rows for each kind of collective, of the dtypes that it takes where x64 is on."""

    def summed(dtype: str) -> jax.Array:
        if not jnp.issubdtype(dtype, jnp.inexact):
            return any_bits(dtype, (devices, devices, 7))  # integers wrap
        small = np.random.default_rng(1).integers(-8, 8, (devices, devices, 7))  # whose sums are exact
        return jnp.asarray(small + 1j * small[..., ::-1] if dtype in COMPLEX else small, dtype)

    ordered = NARROW + FLOATS + X64
    lower = (5 << 32) + np.random.default_rng(2).integers(0, 1 << 32, (devices, 100))  # the upper halves are alike
    halves = {"positive": lower, "negative": -lower, "unsigned": lower.astype(np.uint64)}
    halves |= {"floats": lower.view(np.float64), "negative floats": -lower.view(np.float64)}
    return {
        "summed": {dtype: summed(dtype) for dtype in SUMMED},
        "ordered": {dtype: any_bits(dtype, (devices, 400), seed=1) for dtype in ordered}
        | {name: jnp.asarray(each) for name, each in halves.items()},
        "moved": {dtype: any_bits(dtype, (devices, 3, 7)) for dtype in ordered + COMPLEX}
        | {"float4": jax.lax.bitcast_convert_type(any_bits("uint4", (devices, 3, 7)), "float4_e2m1fn")},
    }


def every_dtype(rows: Any, in_two_parts: bool = True) -> Any:
    """Takes one device's rows."""
    no_bool = {dtype: x for dtype, x in rows["summed"].items() if dtype != "bool"}
    return ({"psum in two parts": apart(rows["summed"])} if in_two_parts else {}) | {
        "psum": jax_passing.psum(rows["summed"], "d"),
        "psum_scatter": jax_passing.psum_scatter(no_bool, "d"),
        "pmax": jax_passing.pmax(rows["ordered"], "d"),
        "pmin": jax_passing.pmin(rows["ordered"], "d"),
        "all_gather": jax_passing.all_gather(rows["moved"], "d"),
        "broadcast": jax_passing.broadcast(rows["moved"], "d", root=jax_passing.axis_size("d") - 1),
    }


def check_every_dtype(got: Any, rows: Any) -> None:
    """`got`: the results of all devices, one after the other, whose rows these were."""
    for name in {"psum", "psum in two parts", "psum_scatter"} & got.keys():
        for dtype, result in got[name].items():
            given = np.asarray(rows["summed"][dtype])
            kind = np.dtype(np.int32) if dtype == "bool" else given.dtype
            wide = np.complex128 if kind.kind == "c" else kind if kind.kind in "iu" else np.float64
            total = given.astype(wide).sum(0, dtype=wide).astype(kind)
            wanted = total if name == "psum_scatter" else np.broadcast_to(total, result.shape)
            assert result.dtype == kind
            np.testing.assert_array_equal(np.asarray(result), wanted, err_msg=f"{name} of {dtype}")
    for name, reduce in (("pmax", np.maximum), ("pmin", np.minimum)):
        for dtype, result in got[name].items():
            # Not beside jax.lax, which flushes denormals, and loses NaN in some orders of the devices.
            given = rows["ordered"][dtype]
            wide = np.float64 if jnp.issubdtype(given.dtype, jnp.floating) else object
            with np.errstate(invalid="ignore"):  # signalling NaN
                best = reduce.reduce(np.asarray(given).astype(wide), axis=0)
                assert result.dtype == given.dtype
                for each in np.asarray(result).astype(wide):
                    np.testing.assert_array_equal(each, best, err_msg=f"{name} of {dtype}")
    for name in ("all_gather", "broadcast"):
        for dtype, result in got[name].items():
            given = np.asarray(rows["moved"][dtype])
            wanted = given if name == "all_gather" else given[-1]
            assert result.dtype == given.dtype
            for each in np.asarray(result):
                assert each.tobytes() == wanted.tobytes(), f"{name} of {dtype}"
