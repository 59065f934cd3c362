"""A host of benchmarks/gpu/gpu.py, and the sums that its parts share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing


@dataclass(frozen=True)
class Host:
    """This process is one host, as a program sees it.

    Attributes:
      mesh: of its one device.
      folder: for what it leaves beside its result.
    """

    rank: int
    world_size: int
    mesh: Any
    on_gpu: bool
    folder: Path

    def split(self) -> Any:
        return NamedSharding(self.mesh, P("d"))


def summing(host: Host, operation: str = "psum", donated: bool = True) -> Any:
    """A jitted sum (or mean) of a tree over all hosts, whose result can be summed again."""

    def body(tree: Any) -> Any:
        return jax.lax.pcast(getattr(jax_passing, operation)(tree, "d"), "d", to="varying")

    mapped = jax.shard_map(body, mesh=host.mesh, in_specs=P("d"), out_specs=P("d"))
    return jax.jit(mapped, donate_argnums=(0,) if donated else ())


def placed(host: Host, values: Any, dtype: str) -> Any:
    return jax.device_put(values.astype(jnp.dtype(dtype)), host.split()).block_until_ready()
