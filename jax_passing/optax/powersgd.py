"""`powersgd` is a transformation of optax: the mean of gradients, summed as factors of low rank."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_passing.collective.axes import axis_size
from jax_passing.collective.inside_host import each_device_own, mean_inside_host
from jax_passing.collective.primitives.bucketed_sum import check_wire_dtype_name
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.hold import together
from jax_passing.collective.psum import psum_with_residuals
from jax_passing.errors import ConfigError
from jax_passing.optax import low_rank
from jax_passing.optax import residuals as feedback
from jax_passing.optax.arguments import check_count, named_by, not_in_multi_steps
from jax_passing.optax.residuals import Residuals

_FUNCTION = "powersgd"


class PowerSGDState(NamedTuple):
    """The state of `powersgd`.

    Attributes:
      step: int32[], how many steps were taken.
      factors: Q of each leaf that is factored, as float32[rank, columns], and None for others; the same on all hosts.
      residuals: what this host's sums left out so far.
    """

    step: Any
    factors: Any
    residuals: Residuals


def powersgd(
    axis_name: Any,
    rank: int = 4,
    *,
    start_step: int = 0,
    min_compression_rate: float = 2.0,
    seed: int = 0,
    wire_dtype: str | None = None,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformation:
    """Makes a transformation that takes the mean of gradients over all devices of all hosts, and sends small factors.

        optimizer = optax.chain(jax_passing.optax.powersgd("d", rank=4), optax.sgd(0.1, momentum=0.9))

    This is PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019), as PyTorch's DDP has it: a matrix of n x m elements
    travels as (n + m) * rank. `compressed_psum` takes its gradients, each device's own. At each step

        M = the mean of the gradients of this host's devices (over fast links) + this host's residual
        P = the mean over hosts of M Q, made orthonormal                                   the first sum
        R = the mean over hosts of Mᵀ P                                                    the second sum
        P Rᵀ is the result; the residual is M - P Rₕᵀ, Rₕ = Mᵀ P of this host; and R is the next step's Q, with a small
        part (2^-12) of this step's: so what R lacks, as gradients were zero or of lower rank, isn't lost.

    **Which residual.** M - P Rₕᵀ is what this host left out of the sum, so as for `compressed_psum` the sum of all
    results so far differs from that of the exact means by the mean over hosts of the last residuals alone, and on every
    host |residual| <= |M| (Frobenius), as P is orthonormal. (M - P Rᵀ, with the mean R, has the same mean over hosts.
    But each host would keep how far it is from the others in the directions of P as well, and that grows with the
    steps.) What a narrow `wire_dtype` rounds off of Rₕ goes into the residual, too; its rounding of M Q only turns P.
    If the mean of M over the hosts has a rank of at most `rank`, and Q has a part in all of it, the result is that
    mean, up to rounding. Q is made orthonormal before it is used, so P's columns are of the size of M's singular
    values, not of their squares, and narrow wire dtypes lose fewer of the small ones.

    Leaves for which factors don't pay, (n + m) * rank * min_compression_rate >= n * m (vectors, small matrices), are
    summed as by `compressed_psum`, in the buckets of the first sum. So are float64, complex and integer leaves. A
    leaf of more dimensions becomes the matrix nearest to a square that keeps the order of elements. Layers that are
    stacked along the first dimension (for `scan`) become one matrix, which shares its factors among them.

    Each host gets the same bits if all of them have processors of one type: factors and their product are computed on
    every host. In a mixture of types they may differ by a rounding, and parameters would drift apart by that.

    The state is that of `compressed_psum` with the factors and the count of steps. These are the same on all hosts:
    a newcomer must be given them with the parameters (`jax_passing.broadcast` of the whole state, then
    `jax_passing.optax.restart`). A step with gradients that aren't finite gives a result that isn't, and leaves the
    factors and residuals of matrices as they were.

    Args:
      axis_name: as for `jax_passing.psum`.
      rank: of the factors. It is the same at every step.
      start_step: before this step gradients, which change fast then, are summed whole.
      min_compression_rate: a leaf is factored if its factors are smaller by more than this.
      seed: of the first Q; the same on all hosts.
      wire_dtype: how floats travel in all these sums: "full", "int16", "int8" or "int4"; None: as the session says.
      strategy: as for `jax_passing.psum`.
      bucket_bytes: as for `jax_passing.psum`.

    Raises:
      ConfigError: here, an argument is out of range. In `update`, as `compressed_psum`.
      UsageError, UnvaryingInputError, NameError: in `update`, as
        `jax_passing.psum`.
    """
    check_wire_dtype_name(wire_dtype, _FUNCTION)
    check_count(_FUNCTION, "rank", rank, 1, "It says how many columns factors have.")
    check_count(_FUNCTION, "start_step", start_step, 0, "It says how many steps sum the gradients whole.")
    if not min_compression_rate > 0:
        raise ConfigError(f"{_FUNCTION}: min_compression_rate={min_compression_rate!r}, expected more than 0.")
    options: dict[str, Any] = {"wire_dtype": wire_dtype, "strategy": strategy, "bucket_bytes": bucket_bytes}

    def init(params: Any) -> PowerSGDState:
        leaves, treedef = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(seed), max(1, len(leaves)))
        factors = [
            None if shape is None else low_rank.first_factor(key, shape[1], rank)
            for key, shape in zip(keys, map(shape_of, leaves), strict=False)
        ]
        return PowerSGDState(jnp.zeros((), jnp.int32), jax.tree.unflatten(treedef, factors), feedback.zeros(params))

    def shape_of(leaf: Any) -> tuple[int, int] | None:
        return low_rank.matrix_shape(leaf, rank, min_compression_rate)

    @not_in_multi_steps(_FUNCTION, sums_stay=False)
    def update(updates: Any, state: PowerSGDState, params: Any = None) -> tuple[Any, PowerSGDState]:
        del params
        feedback.check_axis(axis_name, strategy, _FUNCTION)
        leaves, treedef = feedback.flattened(updates)
        before = feedback.leaves_of(state.residuals, updates, _FUNCTION)
        factors = treedef.flatten_up_to(state.factors)
        _check_factors(factors, [shape_of(leaf) for leaf in leaves], rank)
        step = _Step(axis_name, axis_size(axis_name), options, treedef, leaves, before)
        results: Any
        with named_by(start_step=start_step):
            if start_step == 0:
                results = step.factored(factors)
            else:
                results = jax.lax.cond(state.step < start_step, step.whole, step.factored, factors)
        means, factors, after = (jax.tree.unflatten(treedef, each) for each in results)
        return means, PowerSGDState(optax.safe_increment(state.step), factors, Residuals(after))

    return optax.GradientTransformation(init, update)


class _Step(NamedTuple):
    """One step of all leaves. Its two ways of summing take the factors, and return means, factors and residuals."""

    axis_name: Any
    device_count: Any
    options: dict[str, Any]
    treedef: Any
    leaves: list[Any]
    before: list[Any]

    def whole(self, factors: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        means, left = self._means(list(map(feedback.added, self.leaves, self.before)))
        return means, factors, feedback.kept(self.before, left)

    def factored(self, factors: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        matrices = self._matrices(factors)
        # Factors are sent column by column, as rows: a block of elements, which has one scale, is then of one column.
        former = {i: low_rank.orthonormal(factors[i]) for i in matrices}
        rows = {i: low_rank.product(former[i], matrix.T) for i, matrix in matrices.items()}
        own = each_device_own(rows, self.axis_name)
        given = [own[i] if i in own else feedback.added(leaf, self.before[i]) for i, leaf in enumerate(self.leaves)]
        if matrices:
            # A sum over hosts may fail. On a device where it did JAX's sum inside the host would never come, and XLA
            # ends a process in which the other devices wait for that: so no sum starts before those are done.
            given = together(given)
        means, left = self._means(given)
        after = feedback.kept(self.before, [self.before[i] if i in own else each for i, each in enumerate(left)])

        bases = {i: low_rank.orthonormal(means[i]) for i in matrices}
        rows = {i: low_rank.product(bases[i], matrix) for i, matrix in matrices.items()}
        own = each_device_own(rows, self.axis_name)
        seconds, left = self._means([own.get(i) for i in range(len(self.leaves))])
        factors = list(factors)
        for i, matrix in matrices.items():
            is_finite = jnp.isfinite(seconds[i]).all()
            leaf, base = self.leaves[i], bases[i].T
            means[i] = low_rank.product(base, seconds[i]).reshape(leaf.shape).astype(leaf.dtype)
            rest = (matrix - low_rank.product(base, rows[i] - left[i])).reshape(leaf.shape)
            after[i] = jnp.where(is_finite, rest.astype(after[i].dtype), self.before[i])
            factors[i] = jnp.where(is_finite, low_rank.next_factor(seconds[i], former[i]), factors[i])
        return means, factors, after

    def _matrices(self, factors: list[Any]) -> dict[int, jax.Array]:
        """Returns M of each leaf that is factored, the same on all devices of this host."""
        wide = [None if q is None else leaf.astype(jnp.float32) for q, leaf in zip(factors, self.leaves, strict=True)]
        inside = mean_inside_host(self.treedef.unflatten(wide), self.axis_name, _FUNCTION)
        matrices = {}
        for i, mean in enumerate(self.treedef.flatten_up_to(inside)):
            if mean is not None:
                matrices[i] = (mean + self.before[i].astype(mean.dtype)).reshape(-1, factors[i].shape[1])
        return matrices

    def _means(self, given: list[Any]) -> tuple[list[Any], list[Any]]:
        """Returns means over all devices, and what this host left out. None stands for leaves without a sum."""
        sums, left = psum_with_residuals(
            self.treedef.unflatten(given), self.axis_name, function=_FUNCTION, **self.options
        )
        means = jax.tree.map(lambda total: total / self.device_count, sums)
        return self.treedef.flatten_up_to(means), self.treedef.flatten_up_to(left)


def _check_factors(factors: list[Any], shapes: list[tuple[int, int] | None], rank: int) -> None:
    """Raises ConfigError if the state was made with other arguments than these: the leaves themselves are the same."""
    given = [None if factor is None else factor.shape for factor in factors]
    if given != [None if shape is None else (rank, shape[1]) for shape in shapes]:
        raise ConfigError(
            f"{_FUNCTION}: the factors in the optimizer's state are of another rank or min_compression_rate. Make the "
            "transformation as it was made when the state was, or the state anew: state = optimizer.init(params)."
        )
