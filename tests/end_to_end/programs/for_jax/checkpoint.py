"""Orbax saves what lies on all hosts, and gives it back on another mesh."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as orbax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from over_mesh import meshes, placed


def results() -> Iterator[tuple[str, jax.Array, float]]:
    folder = Path(os.environ["CHECKPOINTS"])
    weights = np.random.default_rng(0).normal(size=(jax.device_count() * 2, 6)).astype(np.float32)
    with orbax.CheckpointManager(folder, options=orbax.CheckpointManagerOptions(max_to_keep=1)) as manager:
        for step, (name, mesh) in enumerate(meshes()):
            state = {"weights": placed(mesh, weights * step, ("a", "b")), "step": placed(mesh, np.int32([step]))}
            manager.save(step, args=orbax.args.StandardSave(state))
            manager.wait_until_finished()
            columns = NamedSharding(mesh, P("b"))
            wanted = {
                "weights": jax.ShapeDtypeStruct(weights.shape, weights.dtype, sharding=columns),
                "step": jax.ShapeDtypeStruct((1,), np.int32, sharding=NamedSharding(mesh, P())),
            }
            for label, value in manager.restore(step, args=orbax.args.StandardRestore(wanted)).items():
                yield f"{name} {label}", value, 0
