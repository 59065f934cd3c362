"""`jax.distributed.initialize()` finds its arguments in clusters that JAX knows: one is what our variables say."""

import os
from typing import Any

from jax._src.clusters import ClusterEnv

from jax_passing.config import PREFIX

ADDRESS = "JAX_COORDINATOR_ADDRESS"  # which JAX itself reads, unlike anything about ranks
_RANK, _WORLD_SIZE = PREFIX + "RANK", PREFIX + "WORLD_SIZE"


def register() -> None:
    """Has JAX look at our variables before it looks at what launchers set. Is called once."""

    class PassingCluster(ClusterEnv):
        name = "jax_passing"

        @classmethod
        def is_env_present(cls) -> bool:
            return all(os.environ.get(name) for name in (ADDRESS, _RANK, _WORLD_SIZE))

        @classmethod
        def get_coordinator_address(cls, *timeout: Any, **port: Any) -> str:
            return os.environ[ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[_WORLD_SIZE])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[_RANK])

    ClusterEnv._cluster_types.remove(PassingCluster)  # JAX has put it at the end, and takes the first that is there
    ClusterEnv._cluster_types.insert(0, PassingCluster)
