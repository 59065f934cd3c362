"""`python -m jax_passing` is the command `jax-passing`."""

from jax_passing.commands.cli import main

main("python -m jax_passing")
