"""An executable from another process: compiled and written to a file, or read from it and run."""

import pickle
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable
from jax.sharding import PartitionSpec as P

import jax_passing


def main(what: str, folder: str) -> None:
    with jax_passing.init(axis_name="d") as session:
        file = Path(folder) / f"rank{session.rank}"
        x = jnp.full((2, 3), session.rank + 1.0)
        if what == "write":
            mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
            step = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
            compiled = jax.jit(step).lower(x).compile()
            file.write_bytes(pickle.dumps(serialize_executable.serialize(compiled)))
        else:  # nothing of ours was traced or lowered here
            compiled = serialize_executable.deserialize_and_load(*pickle.loads(file.read_bytes()))
        assert (compiled(x) == 2 * sum(range(1, session.world_size + 1))).all()
    print("sum right")


main(*sys.argv[1:])
