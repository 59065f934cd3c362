"""`jax-passing status` asks switches how they and their jobs are doing, and shows it."""
