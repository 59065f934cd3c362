"""The processes that `jax-passing run` and `bench` start, here and on other machines."""
