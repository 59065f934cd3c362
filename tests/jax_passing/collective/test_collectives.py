"""`broadcast`, and what all collectives have in common, on one host whose axes are declared."""

# ruff: noqa: B023 (each function is called in the loop that makes it)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing._compat import jaxprs
from jax_passing.collective.naming.sites import canonical
from jax_passing.errors import (
    ConfigError,
    UsageError,
)
from support.jax.collective_cases import numbers, on_grid, on_mesh, same, same_bits
from support.jax.lowered_sums import specs

pytestmark = pytest.mark.usefixtures("session")


# broadcast


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


@pytest.mark.parametrize("root", [-1, 4, True, 1.0, None])
def test_root_is_validated(root):
    with pytest.raises(ConfigError, match="from root=.*expected a Python integer from 0 to 3"):
        on_mesh(lambda x: jax_passing.broadcast(x, "d", root=root))(jnp.ones(4))


# Identities of collectives.


def identities(program, *args):
    found = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith("passing_"):
                found.append(equation.params["site"])
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                walk(getattr(inner, "jaxpr", inner))

    walk(jax.make_jaxpr(program)(*args).jaxpr)
    return [canonical(site.identity(name_stack="", calls=[], leaves=[""] * len(site.paths))) for site in found]


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
        with pytest.raises(UsageError, match=r"jax_passing\.init\(\)"):
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


# float0


@pytest.mark.parametrize("function", ["psum", "pmean", "pmax", "pmin", "broadcast"])
def test_gradients_of_integers_stay_as_they_are(function, check_vma):
    """They have no values. jax.lax.psum passes them through as well; jax.lax.pmean refuses them."""

    def loss(params, x):
        return jnp.sum(params["w"]) * x.sum() * params["n"][0].astype(np.float32)

    def step(x):
        params = {"n": jnp.array([3, 4]), "w": jnp.ones(2)}
        own = params if not check_vma else jax.lax.pcast(params, "d", to="varying")
        gradients = jax.grad(loss, allow_int=True)(own, x)
        results = getattr(jax_passing, function)(gradients, "d")
        assert results["n"].dtype == jax.dtypes.float0
        assert results["n"].shape == (2,)
        return results["w"]

    x = np.arange(4, dtype=np.float32).reshape(4, 1)
    expected = {"psum": 18, "pmean": 4.5, "pmax": 9, "pmin": 0, "broadcast": 0}[function]
    assert on_mesh(step, out_specs=P(), check_vma=check_vma)(x).tolist() == [expected] * 2
    zero = np.zeros(2, jax.dtypes.float0)
    assert jax_passing.process_sum({"n": zero, "w": 2})["n"] is zero


@pytest.mark.parametrize("function", ["all_gather", "psum_scatter", "psum_start"])
def test_others_say_that_gradients_of_integers_have_no_values(function):
    with pytest.raises(UsageError, match="float0.*leave it out"):
        on_mesh(lambda x: getattr(jax_passing, function)((x, np.zeros(2, jax.dtypes.float0)), "d"))(np.ones(4))
