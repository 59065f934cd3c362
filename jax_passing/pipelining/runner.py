"""A stage on the devices that have it: its passes, compiled for them."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_passing.collective.axes import axis_size
from jax_passing.collective.psum import psum
from jax_passing.host import scope
from jax_passing.partitioning.stages import Stage
from jax_passing.pipelining.passes import Part, Passes


class Runner:
    """Arrays that differ from device to device have a leading dimension for that; those of the batch have a second one,
    for the microbatch.

    Attributes:
      passes: of the stage.
      differing, same: the shardings of what differs from device to device, and of what doesn't.
    """

    def __init__(self, stage: Stage, held: Sequence[Any], batch: Sequence[Any], mesh: Mesh, microbatches: int):
        """`held`, `batch`: as for `Passes`; `mesh`: its devices along the data axis."""
        self.passes = Passes(stage, held, batch)
        self._held = held
        self._mesh = mesh
        (self._axis,) = mesh.axis_names
        self._microbatches = microbatches
        self.differing = NamedSharding(mesh, PartitionSpec(self._axis))
        self.same = NamedSharding(mesh, PartitionSpec())
        self._made: dict[tuple[int, bool], Any] = {}

    def zeros(self) -> list[jax.Array]:
        """The sums of gradients before the first microbatch."""
        return [
            jnp.zeros((self._mesh.size, *shape.shape), _wide(shape.dtype), device=self.differing)
            for shape in self._held
        ]

    @functools.cached_property
    def forward(self) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Any], Any]:
        """`forward(held, carried, batch, number)`: what is carried on, the outputs, and what is kept."""

        def body(held: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any], number: Any) -> Any:
            own = [_microbatch(array, number) for array in batch]
            return _with_dimension(self.passes.forward(held, _without_dimension(carried), own))

        differing, same = self.differing.spec, self.same.spec
        return self._compiled(body, (same, differing, differing, same), differing)

    def backward(self, part: Part, known: Mapping[int, Any], number: Any) -> list[Any]:
        """What the part returns, none of which is added up."""
        if (id(part), False) not in self._made:
            self._made[id(part), False] = self._backward(part)
        results: list[Any] = self._made[id(part), False]([known[value] for value in part.inputs], number)
        return results

    def add_gradients(
        self, part: Part, known: Mapping[int, Any], number: Any, sums: Sequence[Any], is_last: bool
    ) -> tuple[list[Any], list[Any]]:
        """The sums with the gradients that the part returns first, and what else it returns.

        After the last microbatch: the mean over all microbatches and all devices, on all hosts.
        """
        if (id(part), is_last) not in self._made:
            self._made[id(part), is_last] = self._add_gradients(part, is_last)
        run = self._made[id(part), is_last]
        results: tuple[list[Any], list[Any]] = run(list(sums), [known[value] for value in part.inputs], number)
        return results

    @functools.cached_property
    def mean(self) -> Callable[[Sequence[Sequence[Any]]], list[Any]]:
        """Of arrays that there are by microbatch."""

        def body(by_microbatch: Sequence[Sequence[Any]]) -> list[Any]:
            several = list(zip(*_without_dimension(by_microbatch), strict=True))
            sums = [functools.reduce(jnp.add, [one.astype(_wide(one.dtype)) for one in arrays]) for arrays in several]
            return self._mean_over_devices(sums, [arrays[0].dtype for arrays in several])

        return self._compiled(body, (self.differing.spec,), self.same.spec)

    def _backward(self, part: Part) -> Any:
        def body(given: Sequence[Any], number: Any) -> Any:
            return _with_dimension(part(self._inputs(part, given, number)))

        return self._compiled(body, (self._specs(part), self.same.spec), self.differing.spec)

    def _add_gradients(self, part: Part, is_last: bool) -> Any:
        count = len(self.passes.held)

        def body(sums: Sequence[Any], given: Sequence[Any], number: Any) -> Any:
            results = part(self._inputs(part, given, number))
            pairs = zip(_without_dimension(sums), results[:count], strict=True)
            added = [before + one.astype(before.dtype) for before, one in pairs]
            if is_last:
                gradients = self._mean_over_devices(added, [shape.dtype for shape in self._held])
            else:
                gradients = _with_dimension(added)
            return gradients, _with_dimension(results[count:])

        differing, same = self.differing.spec, self.same.spec
        specs = (differing, self._specs(part), same)
        return self._compiled(body, specs, (same if is_last else differing, differing), donate_argnums=0)

    def _inputs(self, part: Part, given: Sequence[Any], number: Any) -> list[Any]:
        """Of one device, for one microbatch."""
        arrays = []
        for value, array in zip(part.inputs, given, strict=True):
            if value in self.passes.held:
                arrays.append(array)
            elif value in self.passes.batch:
                arrays.append(_microbatch(array, number))
            else:
                arrays.append(array[0])
        return arrays

    def _specs(self, part: Part) -> list[PartitionSpec]:
        return [self.same.spec if value in self.passes.held else self.differing.spec for value in part.inputs]

    def _mean_over_devices(self, sums: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        """Of sums over the microbatches. They travel in the dtypes that the means are to have."""
        means = [(one / self._microbatches).astype(dtype) for one, dtype in zip(sums, dtypes, strict=True)]
        if scope.current() is None:  # no other hosts
            total, devices = lax.psum(means, self._axis), self._mesh.size
        else:
            total, devices = psum(means, self._axis), axis_size(self._axis)
        return [one / devices for one in total]

    def _compiled(self, body: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
        mapped = jax.shard_map(body, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped, **options)


def _wide(dtype: Any) -> Any:
    """To add many up in: of bfloat16's 8 bits nothing is left behind 256 equal numbers."""
    return jnp.float32 if dtype.itemsize < 4 else dtype


def _microbatch(array: Any, number: Any) -> Any:
    return lax.dynamic_index_in_dim(array[0], number, keepdims=False)


def _without_dimension(tree: Any) -> Any:
    return jax.tree.map(lambda array: array[0], tree)


def _with_dimension(tree: Any) -> Any:
    return jax.tree.map(lambda array: jnp.asarray(array)[np.newaxis], tree)
