"""JAX's own collectives, even where `lax_over_hosts` has put others into jax.lax."""

from jax._src.lax.parallel import all_gather, all_to_all, axis_index, pmax, pmin, psum, psum_scatter

__all__ = ["all_gather", "all_to_all", "axis_index", "pmax", "pmin", "psum", "psum_scatter"]
