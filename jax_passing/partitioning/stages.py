"""A run of the chain's operations as a pure function: what it is given, what it hands on, what it leaves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jax_passing.partitioning.program import (
    Operation,
    Program,
    Turn,
    is_inexact,
    run_turns,
    scan_counts,
    shape_of,
    spine,
)


@dataclass(frozen=True)
class Piece:
    """What a stage holds of a parameter's leaf: all of it, or some of its rows.

    Attributes:
      name: its path, with the rows.
      leaf: which one, in the order of the leaves.
      rows: first and last + 1; None for all.
    """

    name: str
    leaf: int
    rows: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        return self.rows[0] if self.rows else 0

    def of(self, leaf: Any) -> Any:
        """The piece of the leaf; of a shape, its shape."""
        if self.rows is None:
            return leaf
        first, last = self.rows
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((last - first, *leaf.shape[1:]), leaf.dtype)
        return leaf[first:last]


@dataclass(frozen=True)
class Output:
    """What a stage leaves of an output of the program.

    Attributes:
      index: which one, in the order of the outputs.
      row: the first of the rows that this stage leaves; None if it leaves all of it.
    """

    index: int
    row: int | None = None


@dataclass(frozen=True, eq=False)  # so that JAX may remember it
class Stage:
    """A pure function, which JAX may transform: `stage(params, carried, batch)` returns (carried on, outputs).

    `params` is a dictionary with its pieces by name, `carried` a list with what the stage before has handed on (of the
    first one empty), and `batch` the whole batch, of which the stage looks at what it needs. Outputs are a list, in the
    order of `outputs`.

    Attributes:
      pieces: of parameters that it holds.
      batch: indices of the leaves of the batch that it looks at.
      carried_in, carried_out: shapes of what comes from the stage before and goes to the next one.
      needs_gradient_in, needs_gradient_out: by what is carried, whether its gradient is needed: it is of floating
        point, and the loss depends on it. (Others have no gradient in JAX, and zeros instead might become NaN.)
      outputs: of the program, that it leaves.
    """

    pieces: tuple[Piece, ...]
    batch: tuple[int, ...]
    carried_in: tuple[jax.ShapeDtypeStruct, ...]
    carried_out: tuple[jax.ShapeDtypeStruct, ...]
    needs_gradient_in: tuple[bool, ...]
    needs_gradient_out: tuple[bool, ...]
    outputs: tuple[Output, ...]
    _program: Program
    _operations: tuple[Operation, ...]
    _values_in: tuple[int, ...]
    _values_out: tuple[int, ...]

    def held(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Its `params`, given the leaves of the whole model's parameters, or their shapes."""
        return {piece.name: piece.of(leaves[piece.leaf]) for piece in self.pieces}

    def __call__(self, params: Mapping[str, Any], carried: Sequence[Any], batch: Any) -> tuple[list[Any], list[Any]]:
        program, leaves = self._program, jax.tree.leaves(batch)
        known: dict[int, Any] = dict(program.constants)
        known.update(zip(self._values_in, carried, strict=True))
        known.update({program.batch[leaf]: leaves[leaf] for leaf in self.batch})
        held = {program.params[piece.leaf]: (piece, params[piece.name]) for piece in self.pieces}
        known.update({value: array for value, (piece, array) in held.items() if piece.rows is None})
        needed = {value for operation in self._operations for value in operation.values}
        for value in needed.intersection(program.rows):
            row = program.rows[value]
            piece, array = held[row.param]
            known[value] = lax.slice_in_dim(array, row.row - piece.first, row.row - piece.first + 1)

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for run in _runs(self._operations):
            if len(run) == 1:
                results = run[0].run([read(atom) for atom in run[0].inputs])
                known.update(zip(run[0].outputs, results, strict=True))
            else:
                _run_together(run, known, read)
        for value, rows in program.stacked.items():
            if own := [known[row] for row in rows if row in known]:
                known[value] = lax.concatenate(own, 0)
        outputs = [read(program.outputs[output.index]) for output in self.outputs]
        return [known[value] for value in self._values_out], outputs

    def vjp(
        self, params: Mapping[str, Any], carried: Sequence[Any], batch: Any
    ) -> tuple[list[Any], list[Any], Callable[[list[Any]], tuple[Any, Any]]]:
        """Carried on, outputs, and the backward pass, which takes the gradients of what is carried on and needs one.

        The backward pass returns the gradients of the parameters, and of what came and needs one. The gradient of the
        loss is 1. It is a pytree of the arrays that it keeps, so a jitted function may return it.
        """

        def run(params: Any, varying: Sequence[Any]) -> Any:
            given = iter(varying)
            came = [next(given) if wants else one for wants, one in zip(self.needs_gradient_in, carried, strict=True)]
            on, left = self(params, came, batch)
            loss = [value for output, value in zip(self.outputs, left, strict=True) if output.index == 0]
            return (list(compress(on, self.needs_gradient_out)), loss), (on, left)

        varying = list(compress(carried, self.needs_gradient_in))
        (_, loss), back, (on, left) = jax.vjp(run, params, varying, has_aux=True)
        dtypes = [jnp.result_type(value) for value in loss]
        pull = lambda back, coming: back((coming, [jnp.ones((), dtype) for dtype in dtypes]))  # noqa: E731
        return on, left, jax.tree_util.Partial(pull, back)


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Neighbouring turns of one scan together."""
    runs: list[list[Operation]] = []
    for operation in operations:
        last = runs[-1][-1] if runs else None
        if isinstance(operation, Turn) and isinstance(last, Turn) and last.scan == operation.scan:
            runs[-1].append(operation)
        else:
            runs.append([operation])
    return runs


def _run_together(turns: Sequence[Operation], known: dict[int, Any], read: Any) -> None:
    """As one scan, so that XLA compiles its body once."""
    eqn = turns[0].eqn
    shared_count, carry_count = scan_counts(eqn)
    whole = shared_count + carry_count
    in_order = turns[::-1] if eqn.params["reverse"] else turns  # of the rows
    stacked = [
        lax.concatenate([read(turn.inputs[index]) for turn in in_order], 0) for index in range(whole, len(eqn.invars))
    ]
    results = run_turns(eqn, [*(read(atom) for atom in turns[0].inputs[:whole]), *stacked], len(turns))
    known.update(zip(turns[-1].outputs[:carry_count], results[:carry_count], strict=True))
    for index, rows in enumerate(results[carry_count:], carry_count):
        for row, turn in enumerate(in_order):
            known[turn.outputs[index]] = lax.slice_in_dim(rows, row, row + 1)


class Slicer:
    """Makes stages of a program, and knows what crosses a cut.

    Attributes:
      chain: the operations that are cut, in order.
      crossing: by place in the chain, the values that a cut before that operation would be crossed by.
    """

    def __init__(self, program: Program, names: Sequence[str]):
        """`names`: of the leaves of the parameters."""
        self.program = program
        self._names = names
        marks = spine(program)
        self.chain = [one for one, is_on_spine in zip(program.operations, marks, strict=True) if is_on_spine]
        self._maker: dict[int, Operation] = {}  # of values that aren't the chain's
        for operation, is_on_spine in zip(program.operations, marks, strict=True):
            if not is_on_spine:
                self._maker.update(dict.fromkeys(operation.outputs, operation))
        self._defined = {value: place for place, one in enumerate(self.chain) for value in one.outputs}
        self._last_use: dict[int, int] = {}
        for place, operation in enumerate(self.chain):
            for value in operation.values:
                if value in self._defined:
                    self._last_use[value] = place

        self._leads_to_loss = _leading_to(program, program.outputs[0])
        self.crossing: list[list[int]] = [[] for _ in range(len(self.chain) + 1)]
        for value, use in sorted(self._last_use.items()):
            for place in range(self._defined[value] + 1, use + 1):
                self.crossing[place].append(value)

    def needs(self, operations: Sequence[Operation], values: Sequence[int] = ()) -> tuple[set[int], list[Operation]]:
        """What these operations, and these values, are made of that isn't the chain's.

        Inputs of the program (also rows and constants), and operations that are to be copied.
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

    def stage(self, first: int, last: int) -> Stage:
        """Of the chain's operations first to last - 1."""
        program = self.program
        own = self.chain[first:last]
        made = {value for operation in own for value in operation.outputs}
        is_last = last == len(self.chain)
        outputs: list[Output] = []
        free_outputs: list[int] = []
        for index, atom in enumerate(program.outputs):
            if isinstance(atom, core.Literal):
                outputs += [Output(index)] if is_last else []
            elif (rows := program.stacked.get(atom)) is not None:
                outputs += [Output(index, row) for row, value in enumerate(rows) if value in made][:1]
            elif atom in made:
                outputs.append(Output(index))
            elif is_last and atom not in self._defined:  # it depends on the batch only, say
                outputs.append(Output(index))
                free_outputs.append(atom)
        inputs, copied = self.needs(own, free_outputs)
        wanted = {id(operation) for operation in (*own, *copied)}
        operations = tuple(operation for operation in program.operations if id(operation) in wanted)
        values_in, values_out = tuple(self.crossing[first]), tuple(self.crossing[last])
        return Stage(
            pieces=self._pieces(inputs),
            batch=tuple(leaf for leaf, value in enumerate(program.batch) if value in inputs),
            carried_in=tuple(shape_of(program.shapes[value]) for value in values_in),
            carried_out=tuple(shape_of(program.shapes[value]) for value in values_out),
            needs_gradient_in=tuple(value in self._leads_to_loss for value in values_in),
            needs_gradient_out=tuple(value in self._leads_to_loss for value in values_out),
            outputs=tuple(outputs),
            _program=program,
            _operations=operations,
            _values_in=values_in,
            _values_out=values_out,
        )

    def _pieces(self, inputs: set[int]) -> tuple[Piece, ...]:
        rows: dict[int, list[int]] = {}
        for value in inputs:
            if (row := self.program.rows.get(value)) is not None:
                rows.setdefault(row.param, []).append(row.row)
        pieces = []
        for leaf, (value, name) in enumerate(zip(self.program.params, self._names, strict=True)):
            if value in inputs:
                pieces.append(Piece(name, leaf))
            elif value in rows:
                first, last = min(rows[value]), max(rows[value]) + 1
                pieces.append(Piece(f"{name}[{first}:{last}]", leaf, (first, last)))
        return tuple(pieces)


def _leading_to(program: Program, output: Any) -> set[int]:
    """The values of floating point on which an output depends in a way that JAX takes the gradient of."""
    leading = {output} if isinstance(output, int) else set()
    for operation in reversed(program.operations):
        if leading.intersection(operation.outputs) and operation.eqn.primitive.name != "stop_gradient":
            leading.update(value for value in operation.values if is_inexact(program.shapes[value]))
    return leading


def put_together(left: Sequence[tuple[Output, Any]]) -> list[Any]:
    """The program's outputs from what all stages have left of them."""
    parts: dict[int, list[tuple[int, Any]]] = {}
    for output, array in left:
        parts.setdefault(output.index, []).append((output.row or 0, array))
    whole = []
    for index in range(len(parts)):
        arrays = [array for _, array in sorted(parts[index], key=lambda part: part[0])]
        whole.append(arrays[0] if len(arrays) == 1 else lax.concatenate(arrays, 0))
    return whole
