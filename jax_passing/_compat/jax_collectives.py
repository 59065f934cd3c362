"""This package calls JAX's own collectives by this file. One that is wrong over gloo is lowered in another way here."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax._src import config, distributed
from jax._src.lax.parallel import all_gather, all_to_all, axis_index, pmax, pmin, psum, psum_scatter
from jax.interpreters import mlir

from jax_passing._compat import named_axes

__all__ = ["all_gather", "all_to_all", "axis_index", "pmax", "pmin", "psum", "psum_scatter"]


def lower_reduce_scatter(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a rule that lowers a reduce-scatter over gloo to an all-to-all, of which each device adds up what it has
    received: as many bytes. `rule`, JAX's own, lowers others.

    XLA makes no use of gloo's by itself: it partitions by sums and slices. And over TCP small ones are right, as the
    kernel takes up to some MiB of what is sent at once.
    """

    def lower(ctx: mlir.LoweringRuleContext, x: Any, **params: Any) -> Any:
        if not over_gloo():
            return rule(ctx, x, **params)
        with named_axes.unchecked():  # tracing has checked the types of the operations
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
    parts = all_to_all(
        x, axis_name, scatter_dimension, scatter_dimension, axis_index_groups=axis_index_groups, tiled=True
    )
    by_device = lax.reshape(parts, (*before, axis_size, size // axis_size, *behind))
    total = lax.reduce(by_device, lax.full((), 0, x.dtype), lax.add, (scatter_dimension,))
    return total if tiled else lax.squeeze(total, (scatter_dimension,))
