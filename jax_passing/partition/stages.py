"""A run of the chain's operations as a pure function: what it is given, what it hands on, what it leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core

from jax_passing.partition.program import Operation, Program, Turn, run_turns, spine


@dataclass(frozen=True)
class Piece:
    """What a stage holds of a parameter's leaf: all of it, or some of its rows.

    Attributes:
      leaf: which one, in the order of the leaves.
      rows: first and last + 1; None for all.
    """

    leaf: int
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class Stage:
    """
    Attributes:
      pieces: of parameters that it holds.
      batch: indices of the leaves of the batch that it looks at.
      carried_in, carried_out: shapes of what comes from the stage before and goes to the next one.
      outputs: indices of the program's outputs that it leaves.
    """

    pieces: tuple[Piece, ...]
    batch: tuple[int, ...]
    carried_in: tuple[jax.ShapeDtypeStruct, ...]
    carried_out: tuple[jax.ShapeDtypeStruct, ...]
    outputs: tuple[int, ...]
    _body: "_Body"

    def __call__(
        self, params: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """What goes to the next stage, and the outputs. `params`: the pieces; `batch`: all of its leaves."""
        return self._body.run(self, params, carried, batch)


@dataclass(frozen=True)
class _Body:
    program: Program
    operations: tuple[Operation, ...]
    values_in: tuple[int, ...]
    values_out: tuple[int, ...]

    def run(
        self, stage: Stage, params: Sequence[Any], carried: Sequence[Any], batch: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        program = self.program
        known: dict[int, Any] = dict(program.constants)
        known.update(zip(self.values_in, carried, strict=True))
        known.update({program.batch[leaf]: batch[leaf] for leaf in stage.batch})
        held = dict(zip(stage.pieces, params, strict=True))
        for value, row in program.rows.items():
            for piece, array in held.items():
                if program.params[piece.leaf] == row.param:
                    known_row = _row_of(piece, row.row, array)
                    if known_row is not None:
                        known[value] = known_row
        for piece, array in held.items():
            if piece.rows is None:
                known[program.params[piece.leaf]] = array

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for run in _runs(self.operations):
            first = run[0]
            if len(run) == 1:
                results = first.run([read(atom) for atom in first.inputs])
                known.update(zip(first.outputs, results, strict=True))
            else:
                _run_together(run, known, read)
        return [known[value] for value in self.values_out], [read(program.outputs[index]) for index in stage.outputs]


def _row_of(piece: Piece, row: int, array: Any) -> Any:
    first, last = piece.rows or (0, array.shape[0])
    return lax.slice_in_dim(array, row - first, row - first + 1) if first <= row < last else None


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
    carry_count = eqn.params["num_carry"]
    whole = eqn.params["num_consts"] + carry_count
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
    """

    def __init__(self, program: Program):
        self.program = program
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

    def crossing(self, place: int) -> list[int]:
        """The values that a cut before this operation of the chain would be crossed by."""
        return sorted(
            value for value, use in self._last_use.items() if self._defined[value] < place <= use
        )

    def crossing_everywhere(self) -> list[list[int]]:
        """The same for all places at once."""
        crossing: list[list[int]] = [[] for _ in range(len(self.chain) + 1)]
        for value, use in self._last_use.items():
            for place in range(self._defined[value] + 1, use + 1):
                crossing[place].append(value)
        return [sorted(values) for values in crossing]

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
        outputs = []
        free_outputs: list[int] = []
        for index, atom in enumerate(program.outputs):
            if atom in made if isinstance(atom, int) else False:
                outputs.append(index)
            elif is_last and (not isinstance(atom, int) or atom not in self._defined):
                outputs.append(index)  # it depends on the batch only, say
                free_outputs += [atom] if isinstance(atom, int) else []
        inputs, copied = self.needs(own, free_outputs)
        wanted = {id(operation) for operation in (*own, *copied)}
        operations = tuple(operation for operation in program.operations if id(operation) in wanted)
        values_in, values_out = tuple(self.crossing(first)), tuple(self.crossing(last))
        return Stage(
            pieces=self._pieces(inputs),
            batch=tuple(leaf for leaf, value in enumerate(program.batch) if value in inputs),
            carried_in=tuple(_shape(program.shapes[value]) for value in values_in),
            carried_out=tuple(_shape(program.shapes[value]) for value in values_out),
            outputs=tuple(outputs),
            _body=_Body(program, operations, values_in, values_out),
        )

    def _pieces(self, inputs: set[int]) -> tuple[Piece, ...]:
        rows: dict[int, list[int]] = {}
        for value in inputs:
            if (row := self.program.rows.get(value)) is not None:
                rows.setdefault(row.param, []).append(row.row)
        pieces = []
        for leaf, value in enumerate(self.program.params):
            if value in inputs:
                pieces.append(Piece(leaf))
            elif value in rows:
                pieces.append(Piece(leaf, (min(rows[value]), max(rows[value]) + 1)))
        return tuple(pieces)


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def split(pieces: Sequence[Sequence[Piece]], leaves: Sequence[Any]) -> list[list[Any]]:
    """By stage: what it holds of these leaves."""
    return [[_cut_out(piece, leaves[piece.leaf]) for piece in stage] for stage in pieces]


def _cut_out(piece: Piece, leaf: Any) -> Any:
    if piece.rows is None:
        return leaf
    first, last = piece.rows
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((last - first, *leaf.shape[1:]), leaf.dtype)
    return leaf[first:last]


def add_up(
    pieces: Sequence[Sequence[Piece]], held: Sequence[Sequence[Any]], shapes: Sequence[Any]
) -> list[Any]:
    """Leaves from what stages hold of them, added up where several hold the same: gradients of tied parameters."""
    leaves: list[Any] = [None] * len(shapes)
    for stage, arrays in zip(pieces, held, strict=True):
        for piece, array in zip(stage, arrays, strict=True):
            leaves[piece.leaf] = _added(leaves[piece.leaf], piece, array, shapes[piece.leaf])
    return [
        jax.numpy.zeros(shape.shape, shape.dtype) if leaf is None else leaf
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]


def _added(leaf: Any, piece: Piece, array: Any, shape: Any) -> Any:
    if piece.rows is None:
        return array if leaf is None else leaf + array
    zeros = jax.numpy.zeros(shape.shape, shape.dtype) if leaf is None else leaf
    return zeros.at[piece.rows[0] : piece.rows[1]].add(array)


def put_together(pieces: Sequence[Sequence[Piece]], held: Sequence[Mapping[int, Any] | Sequence[Any]], leaves: Sequence[Any]) -> list[Any]:
    """`leaves` with what stages hold in their place; where several hold the same, the first one's."""
    result = list(leaves)
    done: set[Piece] = set()
    for stage, arrays in zip(pieces, held, strict=True):
        for piece, array in zip(stage, arrays, strict=True):
            if piece in done:
                continue
            done.add(piece)
            whole = piece.rows is None
            result[piece.leaf] = array if whole else result[piece.leaf].at[piece.rows[0] : piece.rows[1]].set(array)
    return result
