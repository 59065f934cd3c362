"""Sessions in the process of the tests."""

from concurrent.futures import ThreadPoolExecutor

import jax

import jax_passing
from support.switch.in_process import Member, settings_of


def init_beside(running, other_rank=1, **changes):
    """This process as one rank of two, and a bare membership without any sums as the other."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(Member, settings_of(running, other_rank), len(jax.local_devices()))
        arguments = {"deadline_s": 60, "rank": 1 - other_rank, "world_size": 2, **changes}
        session = jax_passing.init(running.address, **arguments)
        return session, other.result()


def total(x):
    mesh = jax.sharding.Mesh(jax.local_devices()[:2], ("d",))
    spec = jax.sharding.PartitionSpec
    summed = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=spec("d"), out_specs=spec())
    return jax.jit(summed)(x)
