"""Pipelines of the small models of examples/models, against the models themselves."""

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from jax_passing import partition, pipeline
from support.jax import model_cases

STAGES = (2, 3, 4, 6)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1")
ROWS = 4  # of a microbatch


# Bounds gradients made of the same microbatches, in relation to the largest: ResNet50 has 53 layers in a row, and
# each rounds its sums, which may be added up in another order, in the forward and in the backward pass.
ROUNDING = 2 * 53 * 2**-24


def error(ours, theirs):
    """The largest difference of two pytrees over the largest element of the second."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    pairs = list(zip(map(np.asarray, jax.tree.leaves(ours)), map(np.asarray, jax.tree.leaves(theirs)), strict=True))
    assert all(one.dtype == other.dtype and one.shape == other.shape for one, other in pairs)
    largest = np.max([np.abs(other).max() for _, other in pairs])
    return float(np.max([np.abs(one - other).max() for one, other in pairs]) / largest)  # NaN, if there is one


class Case:
    """A model in so many stages, and a step's microbatches: as many as stages on each of one or two devices.

    Attributes:
      params: of the model.
      batch: of a step; `batches` yields more of these.
    """

    def __init__(self, name, stages, has_key=False):
        self._stages, self._has_key = stages, has_key
        self._model = model_cases.SMALL[name]
        self._loss = model_cases.loss_of(self._model)
        self._width = min(2, len(jax.devices()) // stages)
        self._count = stages * self._width
        (self.batch,) = self.batches(1)
        first = self._microbatch(self.batch, 0)
        self.params = model_cases.init(self._model, jax.random.key(0), first)
        self._plan = partition(self._loss, self.params, first, stages=stages, has_aux=True)

    def batches(self, steps):
        for number, batch in enumerate(model_cases.batches_of(self._model, ROWS * self._count, steps)):
            if self._has_key:
                batch["key"] = jax.random.split(jax.random.key(number), self._count)
            yield batch

    def _microbatch(self, batch, number):
        rows = slice(number * ROWS, (number + 1) * ROWS)
        return {name: leaf[number] if name == "key" else leaf[rows] for name, leaf in batch.items()}

    def pipeline(self, schedule):
        """Interleaved stages are two on each device, or all on one if they are odd."""
        devices = self._stages
        if schedule == "interleaved":
            devices = 1 if self._stages % 2 else self._stages // 2
        chosen = np.array(jax.devices()[: devices * self._width]).reshape(devices, self._width)
        return pipeline(self._plan, Mesh(chosen, ("stage", "data")), microbatches=self._stages, schedule=schedule)

    @functools.cached_property
    def _whole(self):
        return jax.jit(jax.value_and_grad(self._loss, has_aux=True))

    def unpartitioned(self, params, batch):
        """Loss, aux and gradients of the model itself: the means over the microbatches, one after the other."""
        results = [self._whole(params, self._microbatch(batch, number)) for number in range(self._count)]
        return jax.tree.map(lambda *leaves: sum(leaves) / self._count, *results)

    @functools.cached_property
    def through_gpipe(self):
        """Loss and gradients as JAX derives them: of the mean over microbatches of the stages one after the other."""

        @jax.jit
        def loss_of_one(params, batch):
            carried, left = [], []
            for stage, held in zip(self._plan.stages, self._plan.split(params), strict=True):
                carried, outputs = stage(held, carried, batch)
                left += zip(stage.outputs, outputs, strict=True)
            return self._plan.result(left)[0]

        microbatches = [self._microbatch(self.batch, number) for number in range(self._count)]

        def loss(params):
            return sum(loss_of_one(params, batch) for batch in microbatches) / self._count

        return jax.value_and_grad(loss)(self.params)
