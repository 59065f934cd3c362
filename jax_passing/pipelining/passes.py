"""Makes the forward and the backward pass of a stage functions of arrays alone, the backward pass also in two parts.

A forward pass keeps nothing for the backward pass that is there anyway, such as parameters. The two parts are those of
Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024): the first has the operations that the gradients of the stage's
inputs need, the second those that only the gradients of parameters need.
"""

import itertools
from collections.abc import Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jax_passing.partitioning.arrays import shape_of
from jax_passing.partitioning.running import needed, part_of, values_of
from jax_passing.partitioning.stages import Stage
from jax_passing.partitioning.traced_model import reached_from, trace


class Passes:
    """Traces the passes of a stage, on numbered values.

    The first values of the backward pass are its inputs, in this order: *held*, the stage's pieces of parameters;
    *carried*, the arrays that were carried to it; *batch*, the leaves of the batch that it uses; *kept*, the arrays
    that its forward pass has kept; *coming*, the gradients of the arrays that it has carried on, as far as they are
    needed; and in the stage that returns the loss *scale*, float32[], the gradient of the loss.

    Attributes:
      stage: the stage.
      held, carried, batch, kept, coming, scale: the ranges of these values.
      backward_shapes: their shapes.
      outputs: shapes of the outputs that the stage returns.
      forward_part: the forward pass; returns the arrays carried on, the outputs, and the arrays kept.
      trained: the indices of the pieces in held that are trained.
      whole: the backward pass; returns the gradients of these pieces, and then of carried.
      to_inputs, to_weights: the backward pass in two parts. The first returns the gradients of carried, and then
        `handed_over`; the second returns the gradients of the trained pieces.
      handed_over: values that the first part makes and the second needs.
    """

    def __init__(self, stage: Stage, held: Sequence[Any], batch: Sequence[Any]):
        """`held`: shapes by piece; `batch`: shapes of all leaves, for one microbatch."""
        self.stage = stage
        self.trained = [index for index, piece in enumerate(stage.pieces) if piece.is_trained]
        self._batch_size = len(batch)
        groups = [list(held), list(stage.carried_in), [batch[leaf] for leaf in stage.batch]]
        self.held, self.carried, self.batch = _numbers(groups)
        forward = trace(lambda given, _: self._traced_forward(given), [one for group in groups for one in group], [])
        # The backward pass closes over literals, inputs, values that are to be kept, and values that depend on neither
        # the batch nor carried arrays, such as transposed parameters and masks. The latter are made anew, or each
        # microbatch would keep its own.
        first_closed = len(stage.carried_out) + len(stage.outputs)
        outputs = forward.outputs[len(stage.carried_out) : first_closed]
        self.outputs = [shape_of(forward.shapes[one] if isinstance(one, int) else one.aval) for one in outputs]
        self._closed_over = forward.outputs[first_closed:]
        varying = reached_from(forward, [*self.carried, *self.batch])
        made = [value for value in dict.fromkeys(values_of(self._closed_over)) if value >= self.batch.stop]
        self._kept_values = [value for value in made if value in varying]
        self._anew_values = [value for value in made if value not in varying]
        self._anew = part_of(needed(forward.operations, self._anew_values), self._anew_values, forward.constants)
        self.forward_part = part_of(
            forward.operations, (*forward.outputs[:first_closed], *self._kept_values), forward.constants
        )
        groups += [
            [shape_of(forward.shapes[value]) for value in self._kept_values],
            list(compress(stage.carried_out, stage.needs_gradient_out)),
            [jax.ShapeDtypeStruct((), jnp.float32) for output in stage.outputs if output.index == 0],
        ]
        *_, self.kept, self.coming, self.scale = _numbers(groups)
        self.backward_shapes = [one for group in groups for one in group]
        backward = trace(lambda given, _: self._traced_backward(given), self.backward_shapes, [])
        count = len(self.trained)
        weights, inputs = backward.outputs[:count], backward.outputs[count:]
        first = needed(backward.operations, inputs)
        in_first = {id(operation) for operation in first}
        second = [operation for operation in needed(backward.operations, weights) if id(operation) not in in_first]
        wanted = {*values_of(weights), *(value for operation in second for value in operation.values)}
        self.handed_over = tuple(sorted(wanted.intersection(value for one in first for value in one.outputs)))
        self.whole = part_of(backward.operations, backward.outputs, backward.constants)
        self.to_inputs = part_of(first, (*inputs, *self.handed_over), backward.constants)
        self.to_weights = part_of(second, weights, backward.constants)

    def forward(self, held: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any]) -> Any:
        """Returns the arrays carried on, the outputs, and the arrays kept for the backward pass.

        `batch` has the leaves that the stage uses, in the order of `stage.batch`.
        """
        given = [*held, *carried, *batch]
        results = self.forward_part([given[value] for value in self.forward_part.inputs])
        first_output = len(self.stage.carried_out)
        first_kept = first_output + len(self.stage.outputs)
        return results[:first_output], results[first_output:first_kept], results[first_kept:]

    def _traced_forward(self, given: Sequence[Any]) -> list[Any]:
        batch: list[Any] = [0] * self._batch_size
        for leaf, value in zip(self.stage.batch, self.batch, strict=True):
            batch[leaf] = given[value]
        by_name = {piece.name: given[value] for piece, value in zip(self.stage.pieces, self.held, strict=True)}
        carried_on, outputs, back = self.stage.vjp(by_name, [given[value] for value in self.carried], batch)
        leaves, self._back_tree = jax.tree.flatten(back)
        return [*carried_on, *outputs, *leaves]

    def _traced_backward(self, given: Sequence[Any]) -> list[Any]:
        """Returns the gradients of the trained pieces, and then of carried."""
        known = dict(enumerate(given[: self.kept.start]))
        known.update(zip(self._kept_values, (given[value] for value in self.kept), strict=True))
        anew = self._anew([given[value] for value in self._anew.inputs])
        known.update(zip(self._anew_values, anew, strict=True))
        leaves = [atom.val if isinstance(atom, core.Literal) else known[atom] for atom in self._closed_over]
        back = jax.tree.unflatten(self._back_tree, leaves)
        held, carried = back([given[value] for value in self.coming], *(given[value] for value in self.scale))
        return [*(held[self.stage.pieces[index].name] for index in self.trained), *carried]


def _numbers(groups: Sequence[Sequence[Any]]) -> list[range]:
    """Returns the range of values of each group of inputs, which a traced model numbers from 0 on."""
    return [range(*ends) for ends in itertools.pairwise(itertools.accumulate(map(len, groups), initial=0))]
