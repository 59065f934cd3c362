"""`all_gather` and `psum_scatter` beside those of JAX, on one host whose axes are declared."""

# ruff: noqa: B023 (each function is called in the loop that makes it)

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import (
    ConfigError,
    UsageError,
)
from support.jax.collective_cases import numbers, on_grid, on_mesh, same, same_bits
from support.jax.lowered_sums import calls, lowered, mapped

pytestmark = pytest.mark.usefixtures("session")


def test_all_gather_along_every_dimension(check_vma):
    def f(of, x):
        return [of(x, "d", axis=axis, tiled=tiled) for axis in (0, 1, 2, -1) for tiled in (False, True)]

    x = numbers("float16", (8, 3, 5))
    same(functools.partial(f, jax_passing.all_gather), functools.partial(f, jax.lax.all_gather), x, check_vma=check_vma)


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
    with pytest.raises(UsageError, match="bool"):
        on_mesh(lambda x: jax_passing.psum_scatter(x, "d"), check_vma=check_vma)(jnp.ones((16, 3), np.bool_))
    with pytest.raises(UsageError, match="key_data"):
        on_mesh(lambda x: jax_passing.all_gather(x, "d"), check_vma=check_vma)(jax.random.split(jax.random.key(0), 4))


def test_the_gradient_of_a_gather_is_a_scatter_and_the_reverse(check_vma):
    def f(x):
        gathered = jax_passing.all_gather(jnp.sin(x), "d", axis=1, tiled=True)
        return jax_passing.psum_scatter(gathered * x.sum(), "d", scatter_dimension=1, tiled=True)

    text = str(jax.make_jaxpr(jax.grad(lambda x: on_mesh(f, check_vma=check_vma)(x).sum()))(jnp.ones((8, 3))))
    assert text.count("passing_all_gather[") == text.count("passing_psum_scatter[") == 2


def test_gathers_over_an_axis_of_vmap():
    x = jax.random.normal(jax.random.key(0), (4, 5, 3))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)

    def batched(of, axes):
        return lambda x: of.psum_scatter(of.all_gather(jnp.sin(x), axes) * x.sum(), axes)

    def over_v(f):
        return jax.vmap(f, axis_name="v", in_axes=1, out_axes=1)

    ours, theirs = (on_mesh(over_v(batched(of, "v"))) for of in (jax_passing, jax.lax))
    for of_x in (lambda f: f(x), lambda f: jax.grad(lambda x: (f(x) ** 2).sum())(x)):
        close(of_x(ours), of_x(theirs))
    # JAX has no rule for several axes at once: compare with a mesh that has them all.
    mine = on_mesh(over_v(batched(jax_passing, ("v", "d"))))
    wide = jax.make_mesh((5, 1), ("v", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:5])
    theirs = jax.jit(
        jax.shard_map(
            lambda x: jax.vmap(batched(jax_passing, ("v", "b")), axis_name="b")(x[:, 0])[:, None],
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


def test_neither_what_is_given_nor_what_is_got_is_copied(check_vma):
    for f in (
        lambda x: jax_passing.all_gather(x, "d", tiled=True),
        lambda x: jax_passing.psum_scatter(x, "d", tiled=True),
    ):
        text = on_mesh(f, check_vma=check_vma).lower(jnp.ones((64, 3))).compile().as_text()
        made = re.findall(r"= f32\[[\d,]*\]\S* ([\w-]+)\(", text)
        assert set(made) <= {"parameter", "bitcast", "custom-call", "get-tuple-element"}, text


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


def test_a_large_gather_and_scatter_travel_together():
    """The second one waits for the turn of the first; what else follows waits until both are done."""

    def f(x, row):
        scattered = jax_passing.psum_scatter(x, "d", tiled=True)
        gathered = jax_passing.all_gather(row, "d", tiled=True)
        return scattered, gathered, jax_passing.psum(row[:3], "d"), jax_passing.all_gather(row[:3], "d", tiled=True)

    both = mapped(f, in_specs=(P(), P("d")), out_specs=(P("d"), P(), P(), P()))
    text = lowered(both, jnp.ones(1 << 18), jnp.ones(1 << 18), platform="cpu")
    first, second = (f"%{result}" for result, *_ in calls(text, "passing_turn"))
    early = calls(text, "passing_early")
    assert [operands[1] for _, operands, *_ in calls(text, "passing_turn")][1] == f"{first}#0"
    assert [operands[-1] for _, operands, *_ in early] == [f"{first}#1", f"{second}#1"]
    assert [aliases for *_, aliases in early] == [[("", "2")]] * 2
    assert [spec["early"] for _, _, spec, _ in [*early, *calls(text)]] == ["0", "1", "0", "0"]
    held = [operands[1] for _, operands, *_ in calls(text, "passing_hold") if operands]
    assert held == [f"%{result}" for result, *_ in early]
