"""Runs a stage on its devices: its passes, compiled for them."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.collective.axes import axis_size
from jax_passing.collective.psum import psum
from jax_passing.host import scope
from jax_passing.partitioning.arrays import is_inexact
from jax_passing.partitioning.running import Part
from jax_passing.partitioning.stages import Stage
from jax_passing.pipelining.passes import Passes
from jax_passing.pipelining.sending import elsewhere, is_here, put


class Runner:
    """Runs a stage on its devices.

    Arrays that differ along the data axis have a leading dimension for that axis; those of the batch have a second one,
    for the microbatch. Along the mesh's other axes JAX partitions by itself.

    Attributes:
      passes: the passes of the stage.
      mesh: the stage's devices.
      differing: the sharding of arrays that differ along the data axis.
      same: the sharding of arrays that are the same on all devices.
      held: by piece of parameters that the stage holds, its sharding.
      is_here: whether this process has any of the stage's devices. If not, methods return arrays without a part here.
    """

    def __init__(
        self,
        stage: Stage,
        held: Sequence[Any],
        held_specs: Sequence[PartitionSpec],
        batch: Sequence[Any],
        mesh: Mesh,
        data_axis: str,
        microbatches: int,
    ):
        """`held`, `batch`: as for `Passes`; `held_specs`: by piece, how it lies on `mesh`."""
        self.passes = Passes(stage, held, batch)
        self._trained = [held[index] for index in self.passes.trained]
        self._trained_specs = [held_specs[index] for index in self.passes.trained]
        self.mesh = mesh
        self._axis = data_axis
        self._microbatches = microbatches
        self.differing = NamedSharding(mesh, PartitionSpec(data_axis))
        self.same = NamedSharding(mesh, PartitionSpec())
        self.held = [NamedSharding(mesh, spec) for spec in held_specs]
        self._gradients = [NamedSharding(mesh, spec) for spec in self._trained_specs]
        self._sums = [NamedSharding(mesh, PartitionSpec(data_axis, *spec)) for spec in self._trained_specs]
        self.is_here = is_here(self.same)
        self._adding: dict[tuple[bool, Any], Any] = {}

    def zeros(self) -> list[jax.Array]:
        """Returns the sums of gradients before the first microbatch."""
        if not self.is_here:
            return []
        width = self.mesh.shape[self._axis]
        return [
            jnp.zeros((width, *shape.shape), _wide(shape.dtype), device=sharding)
            for shape, sharding in zip(self._trained, self._sums, strict=True)
        ]

    def forward(
        self, held: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any], number: Any, *, keeps: bool
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Returns the arrays carried on, the outputs, and the arrays kept, of microbatch `number`.

        `keeps`: whether a backward pass follows; else no arrays are kept.
        """
        if not self.is_here:
            return self._elsewhere(self.passes.stage.carried_out), self._elsewhere(self.passes.outputs), []
        return (self._forward_and_keep if keeps else self._forward)(held, carried, batch, number)

    @functools.cached_property
    def _forward_and_keep(self) -> Any:
        return self._forwards(keeps=True)

    @functools.cached_property
    def _forward(self) -> Any:
        return self._forwards(keeps=False)

    def _forwards(self, keeps: bool) -> Any:
        def body(held: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any], number: Any) -> Any:
            own = [_microbatch(array, number) for array in batch]
            carried_on, outputs, kept = self.passes.forward(held, _without_dimension(carried), own)
            return _with_dimension((carried_on, outputs, kept if keeps else []))

        differing, same = self.differing.spec, self.same.spec
        mapped = self._along_data(body, (same, differing, differing, same), differing)
        return jax.jit(mapped, out_shardings=(self.differing, self.differing, None))

    @functools.cached_property
    def _to_inputs(self) -> Any:
        part = self.passes.to_inputs
        count = len(part.outputs) - len(self.passes.handed_over)

        def body(given: Sequence[Any], number: Any) -> Any:
            results = _with_dimension(part(self._inputs(part, given, number)))
            return results[:count], results[count:]

        mapped = self._along_data(body, (self._specs(part), self.same.spec), self.differing.spec)
        return jax.jit(mapped, out_shardings=(self.differing, None))

    def to_inputs(self, known: Mapping[int, Any], number: Any) -> tuple[list[Any], list[Any]]:
        """Runs the first part of the backward pass: returns the gradients of carried, and the values handed over."""
        if not self.is_here:
            return self._elsewhere(self._gradients_back), []
        return self._to_inputs([known[value] for value in self.passes.to_inputs.inputs], number)

    def scale(self, number: float) -> jax.Array:
        """Returns float32[], a loss scale, on the stage's devices."""
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return put(np.float32(number), self.same) if self.is_here else elsewhere(shape, self.same)

    def add_gradients(
        self,
        is_whole: bool,
        known: Mapping[int, Any],
        number: Any,
        sums: Sequence[Any],
        scale: Any,
        *,
        is_last: bool,
        is_wide: bool,
    ) -> tuple[list[Any], list[Any]]:
        """Runs the whole backward pass, or its second part. Returns the sums with its gradients, and its other results.

        After the last microbatch the sums become means over all microbatches and all devices, on all hosts, and are
        divided by the loss scale. `is_wide`: whether these stay in float32 if their parameters are narrower.
        """
        if not self.is_here:
            gradients = list(map(elsewhere, self._means(is_wide), self._gradients))
            return gradients, self._elsewhere(self._gradients_back) if is_whole else []
        part = self.passes.whole if is_whole else self.passes.to_weights
        if not part.outputs:  # nothing before it, or in it, is trained
            return [], []
        dtypes = tuple(shape.dtype for shape in self._means(is_wide)) if is_last else None
        if (is_whole, dtypes) not in self._adding:
            self._adding[is_whole, dtypes] = self._add_gradients(part, dtypes)
        return self._adding[is_whole, dtypes](list(sums), [known[value] for value in part.inputs], number, scale)

    def results(self, by_microbatch: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns the means of floating-point outputs, and any other output of the last microbatch on the last
        device."""
        if not self.is_here:
            return [elsewhere(shape, self.same) for shape in self.passes.outputs]
        last = [array[-1] for array in by_microbatch[-1]]
        floats = [index for index, array in enumerate(last) if is_inexact(array)]
        if floats:
            means = self._mean([[arrays[index] for index in floats] for arrays in by_microbatch])
            for index, mean in zip(floats, means, strict=True):
                last[index] = mean
        return last

    def all_results(self, by_microbatch: Sequence[Sequence[Any]]) -> list[Any]:
        """Returns the outputs of all microbatches, stacked in the order of the batch."""
        if not self.is_here:
            count = self.mesh.shape[self._axis] * self._microbatches
            shapes = [jax.ShapeDtypeStruct((count, *each.shape), each.dtype) for each in self.passes.outputs]
            return [elsewhere(shape, self.same) for shape in shapes]
        return self._stack(by_microbatch)

    @functools.cached_property
    def _stack(self) -> Any:
        def body(by_microbatch: Sequence[Sequence[Any]]) -> list[Any]:
            stacked = [jnp.stack(arrays, 1) for arrays in zip(*by_microbatch, strict=True)]
            return [array.reshape(-1, *array.shape[2:]) for array in stacked]

        return jax.jit(body, out_shardings=self.same)

    @functools.cached_property
    def _mean(self) -> Any:
        def body(by_microbatch: Sequence[Sequence[Any]]) -> list[Any]:
            several = list(zip(*by_microbatch, strict=True))
            sums = [functools.reduce(jnp.add, [one.astype(_wide(one.dtype)) for one in arrays]) for arrays in several]
            dtypes, specs = [arrays[0].dtype for arrays in several], [self.same.spec] * len(several)
            return self._mean_over_devices(sums, dtypes, specs, jnp.float32(1))

        return jax.jit(body)

    def _means(self, is_wide: bool) -> list[jax.ShapeDtypeStruct]:
        """Returns the shapes of the means of the gradients."""
        return [widened(shape) if is_wide else shape for shape in self._trained]

    @property
    def _gradients_back(self) -> list[Any]:
        """Returns the shapes of the gradients of carried arrays, as far as they are needed."""
        stage = self.passes.stage
        return list(itertools.compress(stage.carried_in, stage.needs_gradient_in))

    def _elsewhere(self, shapes: Sequence[Any]) -> list[jax.Array]:
        width = self.mesh.shape[self._axis]
        return [elsewhere(jax.ShapeDtypeStruct((width, *shape.shape), shape.dtype), self.differing) for shape in shapes]

    def _add_gradients(self, part: Part, dtypes: Sequence[Any] | None) -> Any:
        """`dtypes`: after the last microbatch, those of the means."""
        count = len(self.passes.trained)

        def add(sums: Sequence[Any], given: Sequence[Any], number: Any) -> Any:
            results = part(self._inputs(part, given, number))
            pairs = zip(_without_dimension(sums), results[:count], strict=True)
            added = [before + one.astype(before.dtype) for before, one in pairs]
            return _with_dimension(added), _with_dimension(results[count:])

        def body(sums: Sequence[Any], given: Sequence[Any], number: Any, scale: Any) -> Any:
            differing, same = self.differing.spec, self.same.spec
            added, rest = self._along_data(add, (differing, self._specs(part), same), differing)(sums, given, number)
            if dtypes is not None:
                added = self._mean_over_devices(added, dtypes, self._trained_specs, scale)
            return added, rest

        shardings = self._sums if dtypes is None else self._gradients
        return jax.jit(body, out_shardings=(shardings, self.differing), donate_argnums=0)

    def _inputs(self, part: Part, given: Sequence[Any], number: Any) -> list[Any]:
        """Returns the inputs of a part on one device, for one microbatch."""
        arrays = []
        for value, array in zip(part.inputs, given, strict=True):
            if value in self.passes.held or value in self.passes.scale:
                arrays.append(array)
            elif value in self.passes.batch:
                arrays.append(_microbatch(array, number))
            else:
                arrays.append(array[0])
        return arrays

    def _specs(self, part: Part) -> list[PartitionSpec]:
        same = {*self.passes.held, *self.passes.scale}
        return [self.same.spec if value in same else self.differing.spec for value in part.inputs]

    def _mean_over_devices(
        self, sums: Sequence[Any], dtypes: Sequence[Any], specs: Sequence[PartitionSpec], scale: Any
    ) -> list[Any]:
        """Makes means, in `dtypes`, of sums over the microbatches, and divides them by `scale`.

        The sums have a leading dimension, which `specs` are without.
        """
        if not sums:
            return []

        def body(sums: Sequence[Any], scale: Any) -> list[Any]:
            means = [
                (one / self._microbatches / scale.astype(one.dtype)).astype(_summed_in(dtype))
                for one, dtype in zip(_without_dimension(sums), dtypes, strict=True)
            ]
            if scope.current() is None:  # there are no other hosts
                total, devices = lax.psum(means, self._axis), self.mesh.shape[self._axis]
            else:
                total, devices = psum(means, self._axis), axis_size(self._axis)
            return [(one / devices).astype(dtype) for one, dtype in zip(total, dtypes, strict=True)]

        leading = [PartitionSpec(self._axis, *spec) for spec in specs]
        mapped = jax.shard_map(
            body, mesh=self.mesh, in_specs=(leading, self.same.spec), out_specs=list(specs), check_vma=False
        )
        return mapped(list(sums), scale)

    def _along_data(self, body: Any, in_specs: Any, out_specs: Any) -> Any:
        """Maps `body` over the data axis; XLA partitions it over the mesh's other axes."""
        return jax.shard_map(
            body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names={self._axis}, check_vma=False
        )


def _wide(dtype: Any) -> Any:
    """Returns the dtype of a sum over many microbatches: with 8 bits, bfloat16 stops growing at 256 equal addends."""
    return jnp.float32 if dtype.itemsize < 4 else dtype


def _summed_in(dtype: Any) -> Any:
    """Returns the dtype of a sum over devices: two float16 of 40000 are infinite, though their mean isn't.

    bfloat16 has the range of float32, and travels from host to host in half the bytes; float16 travels as float32 does.
    """
    return dtype if dtype == jnp.bfloat16 and scope.current() is not None else _wide(dtype)


def widened(shape: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, in float32 if it is narrower."""
    return jax.ShapeDtypeStruct(shape.shape, _wide(shape.dtype))


def _microbatch(array: Any, number: Any) -> Any:
    return lax.dynamic_index_in_dim(array[0], number, keepdims=False)


def _without_dimension(tree: Any) -> Any:
    return jax.tree.map(lambda array: array[0], tree)


def _with_dimension(tree: Any) -> Any:
    return jax.tree.map(lambda array: jnp.asarray(array)[np.newaxis], tree)
