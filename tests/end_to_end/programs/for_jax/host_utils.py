"""Calls what `jax.experimental.multihost_utils` offers, and the collectives below that."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P
from over_mesh import meshes, placed


def results() -> Iterator[tuple[str, object, float]]:
    rank = jax.process_index()
    own = {
        "float32": np.random.default_rng(rank).normal(size=(3, 2)).astype(np.float32),
        "int32": np.arange(5, dtype=np.int32) + 1000 * rank,
        "int8": np.full((7,), rank - 1, np.int8),
        "bool": np.array([rank == 0, True, False]),
        "scalar": np.float32(rank + 0.5),
        "none": np.zeros((0, 3), np.float32),
    }
    for name, value in multihost_utils.process_allgather(own).items():
        yield f"gathered {name}", value, 0
    for name, value in multihost_utils.process_allgather(own, tiled=False).items():
        yield f"stacked {name}", value, 0
    for name, value in multihost_utils.broadcast_one_to_all(own).items():
        yield f"of host 0: {name}", value, 0
    last = jax.process_count() - 1
    for name, value in multihost_utils.broadcast_one_to_all(own, is_source=rank == last).items():
        yield f"of the last host: {name}", value, 0
    multihost_utils.sync_global_devices("the first time")
    multihost_utils.sync_global_devices("and again")
    multihost_utils.assert_equal({"a": np.arange(3), "b": np.float32(2)}, "these are equal")
    try:
        multihost_utils.assert_equal(np.arange(3) + rank, "these differ")
        raised = False
    except AssertionError:
        raised = True
    yield "an assertion that fails", np.array(raised), 0
    for name, mesh in meshes():
        if name not in ("row", "pairs"):
            continue  # a host's devices must be neighbours for these
        rows = np.arange(mesh.size * 6, dtype=np.float32).reshape(mesh.size * 2, 3)
        everywhere = multihost_utils.process_allgather(placed(mesh, rows, ("a", "b")), tiled=True)
        np.testing.assert_array_equal(everywhere, rows)
        local = multihost_utils.global_array_to_host_local_array(placed(mesh, rows), mesh, P())
        yield f"{name} local", local, 0
