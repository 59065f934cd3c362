"""JAX is about to make its devices: do its collectives reach whom the user means?

Later the first collective would tell, after all compiling; or none, if each process is the only one that JAX knows.
"""

import logging
import multiprocessing

from jax_passing import config, launchers
from jax_passing._compat import process
from jax_passing.config import FOR_JAX, PREFIX, address_text
from jax_passing.errors import ConfigError
from jax_passing.host import init
from jax_passing.host.session import current

log = logging.getLogger("jax_passing")

_HOW = (
    "Call jax.distributed.initialize in each process, before anything that needs a device; or, where this process is "
    f"no host, unset {FOR_JAX} for it"
)


def check() -> None:
    """Warns if there are several processes, but no switch for them yet, which `jax_passing.init` may still name.

    Raises:
      ConfigError: there is a switch, or there are other workers of Ray Train's, but JAX knows no other process, and
        nobody has said that there is none.
    """
    if multiprocessing.parent_process() is not None:
        return  # it helps a host, as in loading data, and has its variables
    if current() is not None or init.is_opening():
        return  # somebody has said what is meant
    given = config.settings_given({})
    world_size = process.count()
    switch = given.get("switch")
    ray = launchers.rank_of_ray() if world_size == 1 and given.get("world_size") != 1 else None
    if ray is not None and ray.world_size > 1:
        raise ConfigError(
            f"Ray Train has {ray.world_size} workers, but JAX knows this one only, and would train by itself: Ray "
            f"initializes jax.distributed for TPUs and GPUs alone. {_HOW}."
        )
    if switch is None and world_size > 1:
        log.warning(
            "JAX's collectives are to go over a switch (jax_passing.use_for_jax or %s), but none is configured, and "
            "the first of them will fail. Set %sSWITCH=HOST:PORT.",
            FOR_JAX,
            PREFIX,
        )
    elif switch is not None and world_size == 1 and given.get("world_size") != 1:
        who = "JAX knows no other: jax.distributed has one process, or isn't initialized"
        raise config.alone(",".join(address_text(*each) for each in switch), who, _HOW)
