"""Losses and gradients whose sums are part of the backward pass, against those of the whole batch on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import UsageError

pytestmark = pytest.mark.usefixtures("session")

random = np.random.default_rng(0)
PARAMS = {"first": random.normal(size=(5, 7)).astype(np.float32), "last": random.normal(size=(7,)).astype(np.float32)}
X, Y = random.normal(size=(24, 5)).astype(np.float32), random.normal(size=(24,)).astype(np.float32)


def loss(params, x, y):
    errors = jnp.tanh(x @ params["first"]) @ params["last"] - y
    return jnp.mean(errors**2)


def loss_and_aux(params, x, y):
    return loss(params, x, y), {"largest": jnp.max(x)[None], "rows": len(x)}


def same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bucket_bytes", [16, 1 << 22])
def test_it_is_value_and_grad_of_the_whole_batch(check_vma, bucket_bytes):
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    step = jax_passing.overlap(loss, "d", bucket_bytes=bucket_bytes)
    step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P(), check_vma=check_vma)
    same(jax.jit(step)(PARAMS, X, Y), jax.value_and_grad(loss)(PARAMS, X, Y))


def test_aux_is_each_devices_own(check_vma):
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))

    def step(params, x, y):
        (value, aux), gradients = jax_passing.overlap(loss_and_aux, "d", has_aux=True)(params, x, y)
        assert aux["rows"] == 3
        return value, gradients, aux["largest"]

    specs = {"in_specs": (P(), P("d"), P("d")), "out_specs": (P(), P(), P("d"))}
    value, gradients, largest = jax.jit(jax.shard_map(step, mesh=mesh, check_vma=check_vma, **specs))(PARAMS, X, Y)
    same((value, gradients), jax.value_and_grad(loss)(PARAMS, X, Y))
    np.testing.assert_array_equal(largest, X.reshape(8, -1).max(1))


@pytest.mark.parametrize("has_aux", [False, True])
def test_a_loss_that_returns_something_else_than_has_aux_says_is_refused(has_aux):
    step = jax_passing.overlap(loss if has_aux else loss_and_aux, "d", has_aux=has_aux)
    step = jax.shard_map(
        step, mesh=jax.sharding.Mesh(jax.devices(), ("d",)), in_specs=(P(), P("d"), P("d")), out_specs=P()
    )
    with pytest.raises(UsageError, match=f"the loss function returns a .*, and has_aux is {has_aux}. Let it return"):
        jax.jit(step)(PARAMS, X, Y)


def test_pmap():
    step = jax.pmap(jax_passing.overlap(loss, "d"), axis_name="d", in_axes=(None, 0, 0))
    ours = step(PARAMS, X.reshape(8, 3, 5), Y.reshape(8, 3))
    whole = jax.value_and_grad(loss)(PARAMS, X, Y)
    for device in range(8):
        same(jax.tree.map(lambda leaf, device=device: leaf[device], ours), whole)


def ancestors(jaxpr, variables):
    """The equations that these come from."""
    wanted, found = set(map(id, variables)), []
    for eqn in reversed(jaxpr.eqns):
        if wanted.intersection(map(id, eqn.outvars)):
            wanted.update(map(id, eqn.invars))
            found.append(eqn.primitive.name)
    return found


def test_a_buckets_sum_waits_for_no_other_layers_gradient():
    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    step = jax_passing.overlap(loss, "d", bucket_bytes=16)
    step = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P(), check_vma=False)
    inner = jax.make_jaxpr(step)(PARAMS, X, Y).jaxpr.eqns[0].params["jaxpr"]
    sums = [eqn for eqn in inner.eqns if eqn.primitive.name.startswith("passing_psum")]
    products = sorted(ancestors(inner, eqn.invars).count("dot_general") for eqn in sums)
    # The loss takes two products, the last layer's gradient one more, and the first layer's two more than that.
    assert len(set(products)) == len(sums) == 3


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(5, 7, rngs=rngs), nnx.Linear(7, 1, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(7, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
        self.calls = nnx.Param(0.0)

    def __call__(self, x):
        self.calls[...] = self.calls[...] + 1
        return self.last(jnp.tanh(self.dropout(self.norm(self.first(x)))))[:, 0]


@pytest.mark.usefixtures("compiled_fast")
def test_a_module_of_nnx(check_vma):
    """As `nnx.value_and_grad`, whose gradients are summed afterwards: over parameters, and what else it has changes."""
    has_aux = check_vma  # neither with the other takes another way

    def loss(net, x, y):
        value = jnp.mean((net(x) - y) ** 2)
        return (value, {"largest": jnp.max(x)}) if has_aux else value

    def theirs(net, x, y):
        result, gradients = nnx.value_and_grad(loss, has_aux=has_aux)(net, x, y)
        value, *aux = result if has_aux else (result,)
        value, gradients = jax.lax.pmean((value, gradients), "d")
        return ((value, *aux) if has_aux else value), gradients

    mesh = jax.sharding.Mesh(jax.devices(), ("d",))
    results = []
    for step, checked in ((jax_passing.overlap(loss, "d", has_aux=has_aux), check_vma), (theirs, False)):

        def on_device(net, x, y, step=step):
            result, gradients = step(net, x, y)
            value, *aux = result if has_aux else (result,)
            assert isinstance(gradients, nnx.State)
            parameters, others = nnx.state(net, nnx.Param), nnx.state(net, nnx.BatchStat, nnx.RngCount)
            own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (others, parameters.pop("calls")[...], aux))
            return value, gradients, parameters, own

        specs = {"in_specs": (P(), P("d"), P("d")), "out_specs": (P(), P(), P(), P("d"))}
        net = Net(nnx.Rngs(0))
        results.append(jax.jit(jax.shard_map(on_device, mesh=mesh, check_vma=checked, **specs))(net, X, Y))
    same(*results)
