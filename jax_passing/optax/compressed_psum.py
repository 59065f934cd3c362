"""`compressed_psum` is a transformation of optax: the mean of gradients, summed in few bits, with error feedback."""

from typing import Any, NamedTuple

import jax
import optax

from jax_passing.collective.axes import axis_size
from jax_passing.collective.primitives.bucketed_sum import check_wire_dtype_name
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import pmean, psum_with_residuals
from jax_passing.optax import residuals as feedback
from jax_passing.optax.arguments import not_in_multi_steps
from jax_passing.optax.residuals import Residuals


class CompressedPsumState(NamedTuple):
    """The state of `compressed_psum`.

    Attributes:
      residuals: what this host's sums left out so far; None without error feedback.
    """

    residuals: Residuals | None


def compressed_psum(
    axis_name: Any,
    *,
    wire_dtype: str | None = "int8",
    error_feedback: bool = True,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformation:
    """Makes a transformation that takes the mean of gradients over all devices of all hosts, and sends few bits.

        optimizer = optax.chain(jax_passing.optax.compressed_psum("d"), optax.adam(1e-3))

    Each device gives its own gradients, as to `jax_passing.psum`; all get the same mean. Take them with respect to
    parameters that vary, `jax.lax.pcast(params, "d", to="varying")`, under `shard_map(check_vma=True)`.

    **Error feedback** (Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., ICML 2019). A host keeps what
    rounding left out of its sum, and contributes it to the next sum. Let g be the sum of an element's gradients over a
    host's devices, and e its residual, 0 at first. The host means to send x = g + e, it sends x̂, and keeps e' = x -
    x̂. So over any number of steps

        sum of x̂ = sum of g - last e,

    and as sums over hosts are linear, the sum of all means so far differs from that of the exact means by the last e's
    alone, added up over the hosts and divided by the number N of devices. (Each step's own roundings to the leaf's
    dtype come on top: of x, and of the mean.) Errors don't add up over the steps; the rest comes later.
    The state holds e divided by the number of the host's devices, as each of them adds it.

    **Bound.** With b bits and H hosts, Q = floor((2^(b-1) - 1) / H) and M at least the largest |x| of the block on any
    host, elements are rounded to the nearest multiple of M / Q, so |e'| <= (1 + 2^-16) M / 2Q
    (docs/internals/fixed_point.md). M is at most 9/8 of that largest |x|, or in sums of at most four blocks the least
    power of two that isn't below it. So where |g| <= G at each step, M stays below 18/7 G, or 4 G, whatever Q >= 1 is:

        |e| < 2 G / Q    at each step,

    and the sum of all means differs from that of the exact ones by less than 2 H G / (Q N). int8 gives Q = 63 with two
    hosts and 15 with eight; int4 gives 3 with two, and 1 with four to seven.

    A residual is as large as the leaf's gradient, and has its dtype: float32, float16, bfloat16 or complex64. Leaves of
    other dtypes are summed as ever, and have none.

    **The state** has one residual for each leaf, the same on all devices of a host. It goes in and out of `shard_map`
    by `P()`. Hosts have different ones: let each save its own, in a folder for each rank. `jax_passing.optax.restart`
    sets them to zero when the hosts change. `optax.MultiSteps` around it calls it, and so sums, in each of its small
    steps, and uses the last sum: add up gradients inside of the step if bytes matter. Its accumulators are each
    device's own, so it needs `check_vma=False` or pmap; else ConfigError says where it belongs. `optax.apply_if_finite`
    decides by each device's own gradients: put it behind this transformation, never around it.

    Args:
      axis_name: as for `jax_passing.psum`.
      wire_dtype: how floats travel: "int16", "int8", "int4" or "full"; None: as the session says.
      error_feedback: keep residuals. Without them the state is empty, and a mesh may span the processes.
      strategy: as for `jax_passing.psum`.
      bucket_bytes: as for `jax_passing.psum`.

    Raises:
      ConfigError: here, an unknown wire_dtype. In `update`, the state belongs to another model, the wire_dtype is too
        narrow for the number of hosts, a mesh spans the processes, or `optax.MultiSteps` is around it under
        `check_vma=True`.
      UsageError, UnvaryingInputError, NameError: in `update`, as
        `jax_passing.psum`.
    """
    function = "compressed_psum"
    check_wire_dtype_name(wire_dtype, function)

    def init(params: Any) -> CompressedPsumState:
        return CompressedPsumState(feedback.zeros(params) if error_feedback else None)

    @not_in_multi_steps(function, sums_stay=False)
    def update(updates: Any, state: CompressedPsumState, params: Any = None) -> tuple[Any, CompressedPsumState]:
        del params
        if state.residuals is None:
            return pmean(updates, axis_name, wire_dtype=wire_dtype, strategy=strategy, bucket_bytes=bucket_bytes), state
        feedback.check_axis(axis_name, strategy, function)
        leaves, treedef = feedback.flattened(updates)
        before = feedback.leaves_of(state.residuals, updates, function)
        given = jax.tree.unflatten(treedef, map(feedback.added, leaves, before))
        sums, left = psum_with_residuals(
            given, axis_name, wire_dtype=wire_dtype, strategy=strategy, bucket_bytes=bucket_bytes, function=function
        )
        count = axis_size(axis_name)
        means = jax.tree.map(lambda total: total / count, sums)
        after = feedback.kept(before, treedef.flatten_up_to(left))
        return means, CompressedPsumState(Residuals(jax.tree.unflatten(treedef, after)))

    return optax.GradientTransformation(init, update)
