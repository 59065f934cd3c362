"""JAX knows where this process runs: in which cluster, and on which devices."""

import functools
import os
from collections.abc import Callable
from typing import Any, cast

import jax
from jax._src import config, distributed, xla_bridge
from jax._src.clusters import ClusterEnv

from jax_passing import launchers


def backend_exists() -> bool:
    """Tells whether JAX has devices already; asking it for them would create them."""
    return bool(xla_bridge.backends_are_initialized())


@functools.cache  # as often as it is called: JAX's function is wrapped once for each check
def before_devices(check: Callable[[], None]) -> None:
    """Has JAX call `check` before it makes its devices, which it then doesn't make if `check` raises."""
    backends = xla_bridge.backends

    def checked() -> Any:
        if not xla_bridge.backends_are_initialized():
            check()
        return backends()

    xla_bridge.backends = checked


def cpu_collectives() -> str | None:
    """Returns the implementation of collectives on CPU that JAX would take."""
    return cast(str | None, config.cpu_collectives_implementation.value)


def cuda_devices() -> list[jax.Device]:
    """Returns this process's GPUs that JAX uses by way of CUDA, by id. Makes JAX's backends exist."""
    if "cuda" not in xla_bridge.backends():
        return []
    return sorted(jax.local_devices(backend="cuda"), key=lambda device: device.id)


def in_cluster() -> tuple[int, int, str] | None:
    """Returns (index of this process, number of processes, who says so), as `jax.distributed` knows or would detect,
    or Ray Train, torchrun, a launcher of MPI's, Kubeflow or SkyPilot says. Raises ConfigError, as
    `launchers.rank_of_mpi` does."""
    if jax.distributed.is_initialized():
        state = distributed.global_state
        return int(state.process_id), int(state.num_processes), "jax.distributed"
    by_variables = launchers.rank_of_torchrun(os.environ) or launchers.rank_of_mpi(os.environ)
    if (told := launchers.rank_of_ray() or by_variables or launchers.rank_of_platform(os.environ)) is not None:
        return told
    for cluster in ClusterEnv._cluster_types:
        if not cluster.opt_in_only_method and cluster.is_env_present():
            return (
                int(cluster.get_process_id()),
                int(cluster.get_process_count()),
                f"{cluster.__name__}, as JAX detects",
            )
    return None


def count() -> int:
    """Returns how many processes `jax.distributed` has; 1 if it isn't initialized. Makes no devices."""
    return int(distributed.global_state.num_processes) if jax.distributed.is_initialized() else 1


def coordinator() -> Any:
    """Returns this process's connection to the coordinator of `jax.distributed`; None if that isn't initialized."""
    return distributed.global_state.client


def told_in(client: Any, folder: str) -> dict[str, str]:
    """Returns the coordinator's entries in this folder, by the rest of the key. Others than our processes may write
    there: bytes that are no UTF-8, for which JAX's own reading of text raises, are replaced."""
    found = client.key_value_dir_get_bytes(folder)
    return {key.rpartition("/")[2]: value.decode(errors="replace") for key, value in found}
