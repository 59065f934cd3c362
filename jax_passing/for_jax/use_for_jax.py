"""`use_for_jax` makes JAX's own collectives ours, from inside of a program."""

import importlib
import os

import jax

from jax_passing import _native
from jax_passing._compat import process
from jax_passing.config import FOR_JAX
from jax_passing.errors import ConfigError
from jax_passing.for_jax import environment


def use_for_jax() -> None:
    """Has jax_passing carry out all collectives of JAX on CPU: those that `jit` puts in, those of `jax.lax`, and those
    of libraries. Sums go through the switch, and what is only moved mostly from host to host.

    Call it in every process before `jax.distributed.initialize`. The session is opened by the first collective, with
    the settings that `jax_passing.init` finds; or call `init` yourself. docs/train/any_program.md tells what is summed
    how. Collectives of GPUs and TPUs stay as they are.

    Raises:
      ConfigError: JAX has devices already; or another MPI library, or another implementation of collectives, is chosen;
        or this jaxlib is of a kind that we don't know.
    """
    if process.backend_exists():
        raise ConfigError(
            "jax_passing.use_for_jax was called after JAX had made its devices, which keep their collectives. Call it "
            "before jax.distributed.initialize and before anything that needs a device."
        )
    chosen = process.cpu_collectives()
    if chosen not in ("gloo", environment.MPI):  # gloo is JAX's default
        raise ConfigError(f"jax_cpu_collectives_implementation is {chosen!r}: leave it as it is for use_for_jax.")
    if (why := environment.conflict(os.environ)) is not None:
        raise ConfigError(f"jax_passing.use_for_jax takes the place of an MPI library, but {why}. Unset that variable.")
    os.environ.update(environment.variables())
    if (why := _native.bind_mpi_late()) is not None:
        raise ConfigError(
            f"This jaxlib doesn't take an MPI library any more: {why}. Call jax_passing.use_for_jax before `import "
            f"jax`, or set {FOR_JAX}=1 when Python starts."
        )
    watch_xla()
    check_world()
    jax.config.update("jax_cpu_collectives_implementation", environment.MPI)


def check_world() -> None:
    """Has JAX check, before it makes its devices, that its collectives will reach other processes, if any are meant."""
    process.before_devices(_check_world)


def _check_world() -> None:
    importlib.import_module("jax_passing.for_jax.world").check()


def watch_xla() -> None:
    """Has XLA tell us from now on which devices make a collective. Raises ConfigError."""
    if (why := _native.watch_xla()) is not None:
        raise ConfigError(
            f"JAX's collectives can't go over the switch, as this jaxlib doesn't tell who makes them: {why}. Try "
            "another version of jaxlib, or call jax_passing.psum."
        )
