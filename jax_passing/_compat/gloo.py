"""Collectives of XLA's that are wrong over gloo.

The reduce-scatter of gloo, as jaxlib before 0.12 has it, overwrites its operand while it is being sent. So where a
device's results leave it slower than others come in, rank 0 gets a wrong end of its part, without any error. (Over TCP
the kernel takes up to some MiB of what is sent at once; these are right.) It is what `lax.psum_scatter` is lowered to,
and the transpose of `lax.all_gather`. XLA makes no use of it by itself: it partitions by sums and slices.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax._src import config, distributed
from jax._src.interpreters import mlir as private_mlir
from jax._src.lax import parallel
from jax._src.lib import version as jaxlib_version
from jax.interpreters import mlir

from jax_passing._compat import jax_collectives, named_axes


def mend_reduce_scatter() -> None:
    """Over gloo it is lowered to an all-to-all, of which each device adds up what it has received: as many bytes."""
    if jaxlib_version < (0, 12):
        for primitive in (parallel.reduce_scatter_p, parallel.unreduced_reduce_scatter_p):
            rule = _wrapped(private_mlir._lowerings[primitive].rule)
            mlir.register_lowering(primitive, rule, platform="cpu")


def _wrapped(rule: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: mlir.LoweringRuleContext, x: Any, **params: Any) -> Any:
        if not over_gloo():
            return rule(ctx, x, **params)
        with named_axes.unchecked():  # the types of what is lowered were checked when it was traced
            made = mlir.lower_fun(lambda x: _reduce_scatter(x, **params), multiple_results=False)
            return made(ctx.replace(primitive=None), x)

    return lower


def over_gloo() -> bool:
    """Tells whether collectives on CPU go over gloo: with jax.distributed also those of one process do."""
    return distributed.global_state.client is not None and config.cpu_collectives_implementation.value == "gloo"


def _reduce_scatter(
    x: jax.Array, *, scatter_dimension: int, axis_name: Any, axis_size: int, tiled: bool, axis_index_groups: Any = None
) -> jax.Array:
    before, size, behind = x.shape[:scatter_dimension], x.shape[scatter_dimension], x.shape[scatter_dimension + 1 :]
    parts = jax_collectives.all_to_all(
        x, axis_name, scatter_dimension, scatter_dimension, axis_index_groups=axis_index_groups, tiled=True
    )
    by_device = lax.reshape(parts, (*before, axis_size, size // axis_size, *behind))
    total = lax.reduce(by_device, lax.full((), 0, x.dtype), lax.add, (scatter_dimension,))
    return total if tiled else lax.squeeze(total, (scatter_dimension,))
