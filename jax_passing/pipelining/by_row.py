"""Divides a function of arrays that lie on several rows of a mesh into programs for each row, which exchange numbers.

Optimisers compute leaf by leaf, and with numbers about all leaves, such as a norm, a dot product, or whether all is
finite. So each operation runs on the row whose arrays it takes. Only the first row computes with the numbers of several
rows, so that all rows use the same bits, and a number that another row needs is sent there. An operation that takes
arrays of several rows is refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.sharding import NamedSharding

from jax_passing.errors import UsageError
from jax_passing.partitioning.arrays import shape_of
from jax_passing.partitioning.operations import WRAPPED, Operation, source_line
from jax_passing.partitioning.running import needed, part_of
from jax_passing.partitioning.traced_model import Builder
from jax_passing.pipelining.sending import elsewhere, is_here, mesh_of, send

REMEDY = (
    "Rows send each other numbers (such as a norm), but no arrays. Use an optimiser that works leaf by leaf; or leave "
    "out place and by_stage: parameters then stay on the devices where they are, and any optimiser suits."
)


@dataclass(frozen=True)
class Home:
    """Says on which rows an argument or a result of the function lies.

    Attributes:
      name: a name for error messages.
      rows: indices of the rows; an array that lies on all of them is the same there.
    """

    name: str
    rows: tuple[int, ...]


class ByRow:
    """Runs a function as programs for each row.

    Attributes:
      sends: whether rows send each other numbers.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], list[Any]],
        shapes: Sequence[jax.ShapeDtypeStruct],
        homes: Sequence[Home],
        wanted: Sequence[Home],
        rows: Sequence[NamedSharding],
    ):
        """Traces the function, which takes a list of arrays and returns one.

        Args:
          shapes: of the arguments.
          homes: of the arguments.
          wanted: homes of the results.
          rows: by row, the sharding of arrays that are the same on all of its devices.

        Raises UsageError if an operation would need arrays of several rows.
        """
        self._rows = rows
        closed = jax.make_jaxpr(function)(list(shapes))
        self._values = values = _Values()
        self._inputs = [
            values.given(var.aval, home, len(rows)) for var, home in zip(closed.jaxpr.invars, homes, strict=True)
        ]
        outputs = values.inline(closed.jaxpr, closed.consts, self._inputs)
        self._results = [
            {index: output for index, output in enumerate(outputs) if row in wanted[index].rows}
            for row in range(len(rows))
        ]
        sent: set[int] = set()
        for row, results in enumerate(self._results):
            for index, output in results.items():
                values.check(output, row, wanted[index].name)
            sent |= values.from_elsewhere(row, results.values())
        asked: set[int] = set()
        while new := sent - asked:
            asked |= new
            for row in range(len(rows)):
                sent |= values.from_elsewhere(row, [value for value in new if values.row_of[value] == row])
        self.sends = bool(sent)
        packs = _packed(values, sent)
        self._turns = []  # by turn and row, the packs that the row makes, and the program that makes them
        for turn in range(1 + max((pack.turn for pack in packs), default=-1)):
            before = [pack for pack in packs if pack.turn < turn]
            made = [[pack for pack in packs if (pack.turn, pack.row) == (turn, row)] for row in range(len(rows))]
            self._turns.append([(own, _Program(values, own, before, row)) for own, row in zip(made, rows, strict=True)])
        self._last = [
            _Program(values, list(results.values()), packs, row)
            for row, results in zip(rows, self._results, strict=True)
        ]

    def __call__(self, arguments: Sequence[Any]) -> list[dict[int, Any]]:
        """Returns for each row its results by index; nothing for rows of other processes.

        `arguments`: for each row the list of arrays, with None for those that aren't there.
        """
        known: list[dict[Any, Any]] = [dict(zip(self._inputs, arrays, strict=True)) for arrays in arguments]
        for by_row in self._turns:
            made = [
                program(given) if packs and is_here(row) else [elsewhere(pack.shape, row) for pack in packs]
                for row, (packs, program), given in zip(self._rows, by_row, known, strict=True)
            ]
            for source, (packs, _), arrays in zip(self._rows, by_row, made, strict=True):
                for target, given in zip(self._rows, known, strict=True):
                    arrived = send(arrays, mesh_of(source), [target] * len(arrays))
                    given.update(zip(packs, arrived, strict=True))
        return [
            dict(zip(results, program(given), strict=True)) if is_here(row) else {}
            for row, results, program, given in zip(self._rows, self._results, self._last, known, strict=True)
        ]


@dataclass(frozen=True)
class _Pack:
    """Names the numbers of one dtype that a row makes in a turn, and sends in one array."""

    turn: int
    row: int
    dtype: Any
    values: tuple[int, ...]

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(self.values),), self.dtype)


def _packed(values: "_Values", sent: Set[int]) -> list[_Pack]:
    groups: dict[tuple[int, int, Any], list[int]] = {}
    for value in sorted(sent):
        key = values.turn_of.get(value, 0), values.row_of[value], values.shapes[value].dtype
        groups.setdefault(key, []).append(value)
    return [_Pack(turn, row, dtype, tuple(own)) for (turn, row, dtype), own in groups.items()]


class _Program:
    """Makes values, or packs, from the values and packs that a row has."""

    def __init__(self, values: "_Values", outputs: Sequence[Any], packs: Sequence[_Pack], row: NamedSharding):
        """`packs`: those that have been sent to the row."""
        packed_at = {value: (pack, index) for pack in packs for index, value in enumerate(pack.values)}
        wanted = [one for output in outputs for one in (output.values if isinstance(output, _Pack) else [output])]
        part = part_of(needed(values.operations, wanted, packed_at.keys()), wanted, values.constants)
        self._takes = list(dict.fromkeys(packed_at[one][0] if one in packed_at else one for one in part.inputs))

        def run(arrays: Sequence[Any]) -> list[Any]:
            known: dict[Any, Any] = dict(zip(self._takes, arrays, strict=True))
            for value, (pack, index) in packed_at.items():
                if pack in known:
                    known[value] = known[pack][index].reshape(values.shapes[value].shape)
            made = iter(part([known[value] for value in part.inputs]))
            return [
                jnp.stack([next(made).reshape(()) for _ in output.values]) if isinstance(output, _Pack) else next(made)
                for output in outputs
            ]

        # Packs are the same on all devices of the row, and so is a value that is made from no arguments.
        is_whole = not self._takes or any(isinstance(output, _Pack) for output in outputs)
        self._run = jax.jit(run, out_shardings=row if is_whole else None)

    def __call__(self, known: Mapping[Any, Any]) -> list[Any]:
        return self._run([known[one] for one in self._takes])


class _Values(Builder):
    """Finds the row and the turn of each value of the function.

    Attributes:
      row_of: by value, the row that makes it. Each row has, or makes for itself, the values that aren't in here.
      turn_of: by value, how often numbers are sent before it can be made; 0 if it isn't in here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.row_of: dict[int, int] = {}
        self.turn_of: dict[int, int] = {}
        self._names: dict[int, str] = {}  # by value that is an array of one row: an argument that it comes from
        self._maker: dict[int, Operation] = {}

    def given(self, aval: Any, home: Home, rows: int) -> int:
        value = self.new(aval)
        if len(home.rows) < rows or rows == 1:
            self.row_of[value] = home.rows[0]
            if not self._is_number(value):
                self._names[value] = home.name
        return value

    def _is_number(self, value: int) -> bool:
        return math.prod(self.shapes[value].shape) == 1

    def add(self, eqn: core.JaxprEqn, arguments: Sequence[Any], scope: str, calls: Any) -> list[Any]:
        values = [value for value in arguments if isinstance(value, int)]
        arrays = {self.row_of[value]: value for value in values if value in self._names}
        if len(arrays) > 1:
            return self._apart(eqn, arguments, scope, calls, arrays)
        if eqn.effects:
            raise UsageError(
                f"{eqn.primitive.name} {source_line(eqn)} in the optimiser has a side effect, which would happen "
                "on each row of the mesh, or on none: take it out."
            )
        results = super().add(eqn, arguments, scope, calls)
        rows = set(arrays) or {self.row_of[value] for value in values if value in self.row_of}
        if not rows:
            return results
        row = next(iter(rows)) if len(rows) == 1 else 0
        turn = max(self.turn_of.get(v, 0) + (self.row_of.get(v, row) != row) for v in values)
        for value in results:
            self.row_of[value] = row
            self.turn_of[value] = turn
            self._maker[value] = self.operations[-1]
            if arrays and not self._is_number(value):
                self._names[value] = self._names[arrays[row]]
        return results

    def _apart(
        self, eqn: core.JaxprEqn, arguments: Sequence[Any], scope: str, calls: Any, arrays: dict[int, int]
    ) -> list[Any]:
        """Adds an operation that takes arrays of several rows as operations that don't, or raises UsageError."""
        name = eqn.primitive.name
        if name in WRAPPED:  # custom derivatives are lost, but nobody differentiates an optimiser
            body = eqn.params[WRAPPED[name]]
            jaxpr, consts = (body.jaxpr, body.consts) if isinstance(body, core.ClosedJaxpr) else (body, ())
            return self.inline(jaxpr, consts, arguments, scope, (eqn, *calls))
        if name == "cond":  # computes all branches, and chooses among their results, as under vmap
            index, *given = arguments
            cases = [self.inline(one.jaxpr, one.consts, given, scope, (eqn, *calls)) for one in eqn.params["branches"]]
            return [self._chosen([index, *several]) for several in zip(*cases, strict=True)]
        (row, one), (other_row, other) = sorted(arrays.items())[:2]
        location = Operation(eqn, tuple(arguments), (), scope, calls).location
        raise UsageError(
            f"The optimiser computes with {self._names[one]}, which is on row {row} of the mesh, and with "
            f"{self._names[other]}, which is on row {other_row}, in one operation: {name}, {location}. {REMEDY}"
        )

    def _chosen(self, atoms: Sequence[Any]) -> Any:
        shapes = [shape_of(self.shapes[atom] if isinstance(atom, int) else atom.aval) for atom in atoms]
        closed = jax.make_jaxpr(lax.select_n)(*shapes)
        return self.inline(closed.jaxpr, closed.consts, atoms)[0]

    def from_elsewhere(self, row: int, outputs: Any) -> set[int]:
        """Returns the numbers of other rows that are needed to make these values on this row."""
        found: set[int] = set()
        waiting, seen = [value for value in outputs if isinstance(value, int)], set()
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if self.row_of.get(value, row) != row and self._is_number(value):
                found.add(value)
            elif value in self._maker:
                waiting += self._maker[value].values
        return found

    def check(self, output: Any, row: int, name: str) -> None:
        """Raises UsageError if this is an array of another row."""
        if isinstance(output, int) and output in self._names and self.row_of[output] != row:
            raise UsageError(
                f"The optimiser makes {name}, which is on row {row} of the mesh, from {self._names[output]}, which is "
                f"on row {self.row_of[output]}. {REMEDY}"
            )
