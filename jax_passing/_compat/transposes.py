"""JAX's own rules of differentiation that sum over mesh axes."""

from collections.abc import Callable
from typing import Any

from jax._src import core, shard_map
from jax._src.interpreters import ad as private_ad
from jax._src.lax import parallel
from jax.interpreters import ad

Rule = Callable[..., Any]


def wrap_transpose_of_cast(wrap: Callable[[Rule], Rule]) -> None:
    """Of the cast from invariant to varying: (cotangent, operand, *, axes)."""
    ad.primitive_transposes[core.pvary_p] = wrap(ad.primitive_transposes[core.pvary_p])


def wrap_transpose_of_psum(wrap: Callable[[Rule], Rule]) -> None:
    """Of `lax.psum` under check_vma: (cotangent, operand, *, axes)."""
    primitive = parallel.psum_invariant_p
    ad.primitive_transposes[primitive] = wrap(ad.primitive_transposes[primitive])


def wrap_transpose_of_shard_map(wrap: Callable[[Rule], Rule]) -> None:
    """(cotangents, *operands, in_specs, out_specs, mesh, check_vma, …); operands that aren't arrays are linear."""
    fancy = getattr(private_ad, "fancy_transposes", {})
    rules = fancy if shard_map.shard_map_p in fancy else ad.primitive_transposes
    rules[shard_map.shard_map_p] = wrap(rules[shard_map.shard_map_p])
