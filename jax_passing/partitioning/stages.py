"""Runs of the chain's operations are pure functions, with their inputs, the values they hand on, and their results."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jax_passing.partitioning.arrays import is_inexact, shape_of
from jax_passing.partitioning.operations import Operation
from jax_passing.partitioning.running import Part, part_of, run_operations, values_of
from jax_passing.partitioning.traced_model import TracedModel, in_chain, reached_from


@dataclass(frozen=True)
class Piece:
    """Names the part of a parameter's leaf that a stage holds: all of it, or some of its rows.

    Attributes:
      name: the leaf's path, with the rows.
      leaf: its index among the leaves.
      rows: first and last + 1; None for all.
      is_trained: whether the stage computes its gradient.
    """

    name: str
    leaf: int
    rows: tuple[int, int] | None = None
    is_trained: bool = True

    @property
    def first(self) -> int:
        return self.rows[0] if self.rows else 0

    def of(self, leaf: Any) -> Any:
        """Cuts the piece out of the leaf, or out of its shape."""
        if self.rows is None:
            return leaf
        first, last = self.rows
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((last - first, *leaf.shape[1:]), leaf.dtype)
        return leaf[first:last]


@dataclass(frozen=True)
class Output:
    """Names the part of an output of the model that a stage returns: all of it, or some of its rows.

    Attributes:
      index: the output's index among all outputs.
      row: the first of the rows that this stage returns; None if it returns all of them.
    """

    index: int
    row: int | None = None


@dataclass(frozen=True, eq=False)  # compared by identity, so that JAX may cache what it traces
class Stage:
    """Is a pure function, which JAX may transform: `stage(params, carried, batch)` returns (carried on, outputs).

    `params` is a dictionary with its pieces by name, `carried` the list of arrays that the stage before has handed on
    (empty for the first stage), and `batch` the whole batch, of which the stage uses the leaves that it needs. Outputs
    are a list, in the order of `outputs`.

    Attributes:
      pieces: the pieces of parameters that it holds.
      batch: indices of the leaves of the batch that it uses.
      carried_in, carried_out: shapes of the arrays that come from the stage before, and that go to the next one.
      needs_gradient_in, needs_gradient_out: by carried array, whether its gradient is needed: its elements are
        floating-point numbers, the loss depends on it, and it depends on parameters that are trained. (Others have no
        gradient in JAX, and zeros instead might become NaN.)
      outputs: the outputs of the model that it returns.
    """

    pieces: tuple[Piece, ...]
    batch: tuple[int, ...]
    carried_in: tuple[jax.ShapeDtypeStruct, ...]
    carried_out: tuple[jax.ShapeDtypeStruct, ...]
    needs_gradient_in: tuple[bool, ...]
    needs_gradient_out: tuple[bool, ...]
    outputs: tuple[Output, ...]
    _model: TracedModel
    _checkpoints: tuple[Part, ...]
    _operations: tuple[Operation, ...]
    _values_in: tuple[int, ...]
    _values_out: tuple[int, ...]

    def held(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Returns the stage's `params`, given the leaves of all parameters of the model, or their shapes."""
        return {piece.name: piece.of(leaves[piece.leaf]) for piece in self.pieces}

    def __call__(self, params: Mapping[str, Any], carried: Sequence[Any], batch: Any) -> tuple[list[Any], list[Any]]:
        model, leaves = self._model, jax.tree.leaves(batch)
        known: dict[int, Any] = dict(model.constants)
        known.update(zip(self._values_in, carried, strict=True))
        known.update({model.batch[leaf]: leaves[leaf] for leaf in self.batch})
        held = {model.params[piece.leaf]: (piece, params[piece.name]) for piece in self.pieces}
        known.update({value: array for value, (piece, array) in held.items() if piece.rows is None})
        needed = {value for operation in self._operations for value in operation.values}
        needed.update(value for part in self._checkpoints for value in part.inputs)
        for value in needed.intersection(model.rows):
            row = model.rows[value]
            piece, array = held[row.param]
            known[value] = lax.slice_in_dim(array, row.row - piece.first, row.row - piece.first + 1)

        for part in self._checkpoints:
            again = jax.checkpoint(lambda arrays, part=part: part(arrays))  # a part can't be hashed
            known.update(zip(values_of(part.outputs), again([known[value] for value in part.inputs]), strict=True))
        run_operations(self._operations, known)
        for value, rows in model.stacked.items():
            if own := [known[row] for row in rows if row in known]:
                known[value] = lax.concatenate(own, 0)
        results = [model.outputs[output.index] for output in self.outputs]
        outputs = [atom.val if isinstance(atom, core.Literal) else known[atom] for atom in results]
        return [known[value] for value in self._values_out], outputs

    def vjp(
        self, params: Mapping[str, Any], carried: Sequence[Any], batch: Any
    ) -> tuple[list[Any], list[Any], Callable[..., tuple[Any, Any]]]:
        """Returns (carried on, outputs, backward pass).

        The backward pass takes the gradients of those arrays carried on that need one. It returns the gradients of the
        parameters that are trained, and of those arrays carried in that need one. The gradient of the loss is 1, or
        what is given after these gradients. The backward pass is a pytree of the arrays that it keeps, so a jitted
        function may return it.
        """

        def run(trained: Any, varying: Sequence[Any]) -> Any:
            given = iter(varying)
            came = [next(given) if wants else one for wants, one in zip(self.needs_gradient_in, carried, strict=True)]
            carried_on, outputs = self({**params, **trained}, came, batch)
            loss = [value for output, value in zip(self.outputs, outputs, strict=True) if output.index == 0]
            return (list(compress(carried_on, self.needs_gradient_out)), loss), (carried_on, outputs)

        trained = {piece.name: params[piece.name] for piece in self.pieces if piece.is_trained}
        varying = list(compress(carried, self.needs_gradient_in))
        (_, loss), back, (carried_on, outputs) = jax.vjp(run, trained, varying, has_aux=True)
        dtypes = [jnp.result_type(value) for value in loss]

        def pull(back: Any, coming: list[Any], scale: Any = 1.0) -> Any:
            return back((coming, [jnp.asarray(scale, dtype) for dtype in dtypes]))

        return carried_on, outputs, jax.tree_util.Partial(pull, back)


class Slicer:
    """Cuts the chain of a model into stages, and knows which values cross a cut.

    Attributes:
      chain: the operations that are cut, in order.
      crossing: by position in the chain, the values that would cross a cut before the operation there.
    """

    def __init__(self, model: TracedModel, names: Sequence[str]):
        """`names`: the paths of the leaves of the parameters."""
        self.model = model
        self._names = names
        marks = in_chain(model)
        self.chain = [one for one, is_in_chain in zip(model.operations, marks, strict=True) if is_in_chain]
        self._maker: dict[int, Operation] = {}  # by value that no operation of the chain makes
        for operation, is_in_chain in zip(model.operations, marks, strict=True):
            if not is_in_chain:
                self._maker.update(dict.fromkeys(operation.outputs, operation))
        self._defined = {value: number for number, one in enumerate(self.chain) for value in one.outputs}
        last_use: dict[int, int] = {}
        for number, operation in enumerate(self.chain):
            for value in operation.values:
                if value in self._defined:
                    last_use[value] = number

        self._has_gradient = _leading_to(model, model.outputs[0]) & reached_from(model, model.trained)
        self.crossing: list[list[int]] = [[] for _ in range(len(self.chain) + 1)]
        for value, use in sorted(last_use.items()):
            for position in range(self._defined[value] + 1, use + 1):
                self.crossing[position].append(value)

    def needs(self, operations: Sequence[Operation], values: Sequence[int] = ()) -> tuple[set[int], list[Operation]]:
        """Returns what is needed for these operations and these values, besides the chain's own operations.

        That is a set of inputs of the model (also rows and constants), and a list of operations that are to be copied.
        """
        wanted = [value for operation in operations for value in operation.values] + list(values)
        inputs: set[int] = set()
        copied: dict[int, Operation] = {}
        seen: set[int] = set()
        while wanted:
            value = wanted.pop()
            if value in self._defined or value in seen:
                continue
            seen.add(value)
            maker = self._maker.get(value)
            if maker is None:
                inputs.add(value)
            else:
                copied[id(maker)] = maker
                wanted.extend(maker.values)
        return inputs, list(copied.values())

    def runs(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the first and the last + 1 operation of the chain's runs between the cuts."""
        return list(itertools.pairwise((0, *cuts, len(self.chain))))

    def stages(self, cuts: Sequence[int], checkpoints: Sequence[Sequence[int]]) -> tuple[Stage, ...]:
        """Makes the stages between the cuts. `checkpoints`: by stage, as for `stage`."""
        runs = self.runs(cuts)
        pairs = zip(runs, checkpoints, strict=True)
        return tuple(self.stage(first, last, own) for (first, last), own in pairs)

    def stage(self, first: int, last: int, checkpoints: Sequence[int] = ()) -> Stage:
        """Makes the stage of the chain's operations first to last - 1.

        `checkpoints`: positions where runs of operations that are computed again begin, and where the last one ends.
        """
        model = self.model
        own = self.chain[first:last]
        made = {value for operation in own for value in operation.outputs}
        is_last = last == len(self.chain)
        outputs: list[Output] = []
        free_outputs: list[int] = []
        for index, atom in enumerate(model.outputs):
            if isinstance(atom, core.Literal):
                outputs += [Output(index)] if is_last else []
            elif (rows := model.stacked.get(atom)) is not None:
                outputs += [Output(index, row) for row, value in enumerate(rows) if value in made][:1]
            elif atom in made:
                outputs.append(Output(index))
            elif is_last and atom not in self._defined:  # for example one that depends on the batch only
                outputs.append(Output(index))
                free_outputs.append(atom)
        inputs, _ = self.needs(own, free_outputs)
        kept_from = checkpoints[-1] if checkpoints else first
        _, copied = self.needs(self.chain[kept_from:last], free_outputs)
        values_in, values_out = tuple(self.crossing[first]), tuple(self.crossing[last])
        return Stage(
            pieces=self._pieces(inputs),
            batch=tuple(leaf for leaf, value in enumerate(model.batch) if value in inputs),
            carried_in=tuple(shape_of(model.shapes[value]) for value in values_in),
            carried_out=tuple(shape_of(model.shapes[value]) for value in values_out),
            needs_gradient_in=tuple(value in self._has_gradient for value in values_in),
            needs_gradient_out=tuple(value in self._has_gradient for value in values_out),
            outputs=tuple(outputs),
            _model=model,
            _checkpoints=tuple(self._checkpoint(*ends) for ends in itertools.pairwise(checkpoints)),
            _operations=self._in_order([*self.chain[kept_from:last], *copied]),
            _values_in=values_in,
            _values_out=values_out,
        )

    def _in_order(self, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        wanted = set(map(id, operations))
        return tuple(operation for operation in self.model.operations if id(operation) in wanted)

    def _checkpoint(self, first: int, last: int) -> Part:
        model, own = self.model, self.chain[first:last]
        _, copied = self.needs(own)
        rows = [row for rows in model.stacked.values() for row in rows]
        behind = {*self.crossing[last], *rows, *values_of(model.outputs)}
        from_chain = {value for operation in own for value in operation.outputs}
        return part_of(self._in_order([*own, *copied]), sorted(behind & from_chain), model.constants)

    def _pieces(self, inputs: set[int]) -> tuple[Piece, ...]:
        rows: dict[int, list[int]] = {}
        for value in inputs:
            if (row := self.model.rows.get(value)) is not None:
                rows.setdefault(row.param, []).append(row.row)
        pieces = []
        for leaf, (value, name) in enumerate(zip(self.model.params, self._names, strict=True)):
            is_trained = value not in self.model.frozen
            if value in inputs:
                pieces.append(Piece(name, leaf, None, is_trained))
            elif value in rows:
                first, last = min(rows[value]), max(rows[value]) + 1
                pieces.append(Piece(f"{name}[{first}:{last}]", leaf, (first, last), is_trained))
        return tuple(pieces)


def _leading_to(model: TracedModel, output: Any) -> set[int]:
    """Returns the floating-point values on which the output depends in a way that JAX takes the gradient of."""
    leading = {output} if isinstance(output, int) else set()
    for operation in reversed(model.operations):
        if leading.intersection(operation.outputs) and operation.eqn.primitive.name != "stop_gradient":
            leading.update(value for value in operation.values if is_inexact(model.shapes[value]))
    return leading


def put_together(outputs: Sequence[tuple[Output, Any]]) -> list[Any]:
    """Makes the model's outputs from the parts that all stages have returned."""
    parts: dict[int, list[tuple[int, Any]]] = {}
    for output, array in outputs:
        parts.setdefault(output.index, []).append((output.row or 0, array))
    whole = []
    for index in range(len(parts)):
        arrays = [array for _, array in sorted(parts[index], key=lambda part: part[0])]
        whole.append(arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, 0))
    return whole
