"""`jax-passing bench`."""
