"""Derivatives through sums, as a table. Each case is one program, run by every host and by one process on all devices.

A case gets a `World`, computes on the devices there, and returns (what is equal on all devices and hosts, what has a
row for each device). The operations are those of jax_passing or, in the one process, of jax.lax.
"""

from support.jax.gradients import activations, axes, derivatives, parameters  # noqa: F401  (they fill the table)
from support.jax.gradients.cases import CASES as CASES
from support.jax.gradients.cases import World as World
