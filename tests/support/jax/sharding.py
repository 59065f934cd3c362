"""Steps of `sharded` optimizers, and of the same ones on whole arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from jax_passing.optax import gather, part_specs, sharded

# Sizes that divide and sizes that don't, a number, an empty array, and two dtypes.
PARAMS = {
    "bias": jnp.linspace(-1, 1, 7),
    "empty": jnp.zeros((0, 3)),
    "half": jnp.linspace(-2, 2, 30).astype(jnp.bfloat16).reshape(5, 6),
    "number": jnp.float32(2),
    "weight": jnp.linspace(-1, 1, 40 * 6 * 8).reshape(40, 6, 8),
}


def exact_gradients(step, devices, params=PARAMS):
    """Returns a row of gradients for each of these devices. Their sums are exact in any order, also in bfloat16."""
    rows = []
    for device in devices:
        random = np.random.default_rng((step, device))
        rows.append(
            jax.tree.map(lambda p, r=random: np.asarray(r.integers(-15, 16, p.shape) / 16).astype(p.dtype), params)
        )
    return jax.tree.map(lambda *each: np.stack(each), *rows)


def exact_mean(step, devices, params=PARAMS):
    """Returns the mean of the gradients of so many devices, rounded once."""
    rows = exact_gradients(step, range(devices), params)
    return jax.tree.map(lambda each: (each.astype(np.float64).sum(0) / devices).astype(each.dtype), rows)


class Sharded:
    """A `sharded` optimizer on a mesh of this host's devices.

    Attributes:
      state: of its steps so far.
    """

    def __init__(self, inner, devices, params=PARAMS, check_vma=True, donate=False):
        self.mesh = jax.sharding.Mesh(jax.local_devices()[:devices], ("d",))
        self.optimizer = sharded(inner, "d", self.mesh)
        self.state = self.optimizer.init(params)
        self._step, self._check_vma, self._donate = None, check_vma, donate

    def update(self, rows, params):
        """Returns the updates, put together if `params` are parts."""
        if self._step is None:
            state, given = part_specs(self.state, "d"), part_specs(params, "d")

            def step(rows, state, params):
                updates, state = self.optimizer.update(jax.tree.map(lambda row: row[0], rows), state, params)
                return gather(updates, "d"), state

            mapped = jax.shard_map(
                step, mesh=self.mesh, in_specs=(P("d"), state, given), out_specs=(P(), state),
                check_vma=self._check_vma,
            )  # fmt: skip
            self._step = jax.jit(mapped, donate_argnums=(1,) if self._donate else ())
        updates, self.state = self._step(rows, self.state, params)
        return updates

    def whole_state(self):
        return gather(self.state, "d", self.mesh)


def bytes_of_device(tree):
    """Returns the bytes of arrays that the first device holds."""
    device = jax.local_devices()[0]
    arrays = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return sum(part.data.nbytes for leaf in arrays for part in leaf.addressable_shards if part.device == device)


def adamw_bound(state, mean, params, rate, decay, b1=0.9, b2=0.999, eps=1e-8):
    """Returns, for each leaf, by how much two float32 computations of one step of adamw can differ that begin with the
    same state.

    With u = 2^-24 each operation is off by u of its result, or by 0 where it is fused with the next one. Let A = b1 |m|
    + (1 - b1) |g|, as large as what m is the sum of. Two computations of m are 4 u A from each other, as each has two
    products and a sum; those of v, which is a sum of positive numbers with three roundings and a square, 8 u v. So with
    the divisions by the bias corrections, whose own powers are the same, the quotient m / (sqrt(v) + eps) differs by (4
    A + 16 |m|) u / (sqrt(v) + eps), and |m| <= A. The decay and the rate add 4 roundings of their results.
    """
    u, count = 2.0**-24, int(optax.tree.get(state, "count")) + 1
    wide = lambda tree: jax.tree.map(lambda x: np.asarray(x, np.float64), tree)  # noqa: E731
    m, v = wide(optax.tree.get(state, "mu")), wide(optax.tree.get(state, "nu"))

    def bound(m, v, g, p):
        size = (b1 * np.abs(m) + (1 - b1) * np.abs(g)) / (1 - b1**count)
        root = np.sqrt((b2 * v + (1 - b2) * g * g) / (1 - b2**count)) + eps
        return rate * u * (24 * size / root + 4 * decay * np.abs(p))

    return jax.tree.map(bound, m, v, wide(mean), wide(params))
