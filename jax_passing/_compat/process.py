"""Where this process runs, as far as JAX knows."""

import jax
from jax._src import distributed, xla_bridge
from jax._src.clusters import ClusterEnv


def backend_exists() -> bool:
    """Whether JAX has devices already; asking it for them would create them."""
    return bool(xla_bridge.backends_are_initialized())


def in_cluster() -> tuple[int, int, str] | None:
    """(index of this process, number of processes, who says so), as `jax.distributed` knows or would detect it."""
    if jax.distributed.is_initialized():
        state = distributed.global_state
        return int(state.process_id), int(state.num_processes), "jax.distributed"
    for cluster in ClusterEnv._cluster_types:
        if not cluster.opt_in_only_method and cluster.is_env_present():
            return (
                int(cluster.get_process_id()),
                int(cluster.get_process_count()),
                f"{cluster.__name__}, as JAX detects",
            )
    return None
