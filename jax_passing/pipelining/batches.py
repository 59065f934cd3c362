"""Divides a batch among the data axis, the microbatches and the stages."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jax_passing.errors import UsageError
from jax_passing.partitioning.plan import Plan, difference
from jax_passing.pipelining.runner import Runner


class Batches:
    """Gives each stage the leaves of a batch that it uses.

    A *column* has the devices of the mesh at one index of the data axis.
    """

    def __init__(self, plan: Plan, mesh: Mesh, data_axis: str, microbatches: int):
        self._plan = plan
        self._microbatches = microbatches
        columns = np.moveaxis(mesh.devices, mesh.axis_names.index(data_axis), 0)
        own = jax.process_index()
        self._width = len(columns)
        self._columns_here = [
            number
            for number, column in enumerate(columns)
            if any(device.process_index == own for device in column.flat)
        ]

    def by_stage(self, batch: Any, runners: Sequence[Runner]) -> list[list[jax.Array]]:
        """Returns by stage the leaves that it uses, as arrays [column, microbatch, ...]."""
        leaves, tree = jax.tree.flatten(batch)
        if tree != self._plan.batch_tree:
            raise UsageError(
                f"The batch has another structure than the plan's: {difference(tree, self._plan.batch_tree)}."
            )
        arranged = [self._arranged(leaf, shape) for leaf, shape in zip(leaves, self._plan.batch_shapes, strict=True)]
        return [
            [self._distributed(arranged[leaf], runner.differing) for leaf in runner.passes.stage.batch]
            for runner in runners
        ]

    def _arranged(self, leaf: Any, shape: jax.ShapeDtypeStruct) -> Any:
        """Reshapes a leaf of the batch to [column of this process, microbatch, ...]."""
        count = len(self._columns_here), self._microbatches
        total = count[0] * count[1]
        stacked = (total, *shape.shape)
        fits = [stacked] + ([(total * shape.shape[0], *shape.shape[1:])] if shape.shape else [])
        if jnp.result_type(leaf) != shape.dtype:
            raise UsageError(f"A leaf of the batch is {jnp.result_type(leaf)}; the plan was made for {shape.dtype}.")
        if np.shape(leaf) not in fits:
            raise UsageError(
                f"A leaf of the batch has the shape {np.shape(leaf)}. A microbatch has the shape {shape.shape}, and "
                f"the batch needs {total} microbatches: {count[1]} for each of {count[0]} devices along the data axis. "
                f"So the leaf's shape has to be {' or '.join(map(str, fits))}. A random key is split for that: "
                f"jax.random.split(key, {total})."
            )
        return leaf.reshape(*count, *shape.shape)

    def _distributed(self, array: Any, sharding: NamedSharding) -> jax.Array:
        """Puts an array, with a row for each column of this process, on a stage's devices."""
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        shape = (self._width, *array.shape[1:])
        pieces = []
        for device, index in sharding.addressable_devices_indices_map(shape).items():
            assert index is not None, "the sharding has an index for each device"
            first, _, _ = index[0].indices(self._width)
            row = self._columns_here.index(first)
            pieces.append(jax.device_put(array[row : row + 1], device))
        return jax.make_array_from_single_device_arrays(shape, sharding, pieces, dtype=array.dtype)
