"""Sums over the devices of all hosts: first inside each host, then inside the network."""

from jax_passing import errors
from jax_passing.psum import pmean, psum
from jax_passing.session import Session, init

__all__ = ["Session", "errors", "init", "pmean", "psum"]
