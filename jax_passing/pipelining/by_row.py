"""A function of arrays that lie on several rows of a mesh, as programs for each row that send each other numbers.

Optimisers compute leaf by leaf, and with numbers about all leaves: a norm, a dot product, whether all is finite. So
each operation is done on the row whose arrays it takes. What is made of the numbers of several rows is made on the
first row alone, so that all rows go by the same bits, and a number that another row needs is sent there. An operation
that takes arrays of several rows is refused.
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

from jax_passing.errors import PipelineError
from jax_passing.partitioning.program import CHECKPOINT, Builder, Operation, line_of, shape_of
from jax_passing.pipelining.passes import needed, part_of
from jax_passing.pipelining.sending import elsewhere, is_here, mesh_of, send

# Calls that are looked into if they take arrays of several rows; nobody differentiates what an optimiser does.
_CALLS = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", **dict.fromkeys(CHECKPOINT, "jaxpr")}


REMEDY = (
    "Rows send each other numbers (a norm, whether all is finite), but no arrays. Use an optimiser that works leaf by "
    "leaf; or leave out place and by_stage: parameters then stay on the devices where they are, and any optimiser "
    "suits."
)


@dataclass(frozen=True)
class Place:
    """Where an argument or a result of the function lies.

    Attributes:
      name: for people.
      rows: indices of the rows; what lies on all of them is the same there.
    """

    name: str
    rows: tuple[int, ...]


class ByRow:
    """The programs.

    Attributes:
      sends: whether rows send each other numbers.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], list[Any]],
        shapes: Sequence[jax.ShapeDtypeStruct],
        places: Sequence[Place],
        wanted: Sequence[Place],
        rows: Sequence[NamedSharding],
    ):
        """`function` of a list of arrays, with these shapes at these places, returns a list, wanted at such places.

        Raises PipelineError if an operation would need arrays of several rows.
        """
        self._rows = rows
        closed = jax.make_jaxpr(function)(list(shapes))
        self._values = values = _Values()
        self._inputs = [
            values.given(var.aval, place, len(rows)) for var, place in zip(closed.jaxpr.invars, places, strict=True)
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
        self._turns = []  # each: by row, the packs that it makes, and the program that makes them
        for turn in range(1 + max((pack.turn for pack in packs), default=-1)):
            before = [pack for pack in packs if pack.turn < turn]
            made = [[pack for pack in packs if (pack.turn, pack.row) == (turn, row)] for row in range(len(rows))]
            self._turns.append(
                [(own, _Program(values, own, before, home)) for own, home in zip(made, rows, strict=True)]
            )
        self._last = [
            _Program(values, list(results.values()), packs, row)
            for row, results in zip(rows, self._results, strict=True)
        ]

    def __call__(self, arguments: Sequence[Any]) -> list[dict[int, Any]]:
        """By row, the results that are wanted there, by index; nothing of rows of other processes.

        `arguments`: by row, the list of arrays; what isn't there is None.
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
    """Numbers of a dtype that a row makes in a turn, and sends in one array."""

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
    """Makes values, or packs, of what a row has of both."""

    def __init__(self, values: "_Values", outputs: Sequence[Any], packs: Sequence[_Pack], row: NamedSharding):
        """`packs`: those that the row has been sent."""
        place_of = {value: (pack, index) for pack in packs for index, value in enumerate(pack.values)}
        wanted = [one for output in outputs for one in (output.values if isinstance(output, _Pack) else [output])]
        part = part_of(needed(values.operations, wanted, place_of.keys()), wanted, values.constants)
        self._takes = list(dict.fromkeys(place_of[one][0] if one in place_of else one for one in part.inputs))

        def run(arrays: Sequence[Any]) -> list[Any]:
            known: dict[Any, Any] = dict(zip(self._takes, arrays, strict=True))
            for value, (pack, index) in place_of.items():
                if pack in known:
                    known[value] = known[pack][index].reshape(values.shapes[value].shape)
            made = iter(part([known[value] for value in part.inputs]))
            return [
                jnp.stack([next(made).reshape(()) for _ in output.values]) if isinstance(output, _Pack) else next(made)
                for output in outputs
            ]

        # Packs are the same on all devices of the row. What is made of nothing is to be made there, too.
        is_whole = not self._takes or any(isinstance(output, _Pack) for output in outputs)
        self._run = jax.jit(run, out_shardings=row if is_whole else None)

    def __call__(self, known: Mapping[Any, Any]) -> list[Any]:
        results: list[Any] = self._run([known[one] for one in self._takes])
        return results


class _Values(Builder):
    """
    Attributes:
      row_of: by value, the row that makes it. What isn't in here, each row has, or makes for itself.
      turn_of: by value, how often numbers are sent before it can be made; 0 if it isn't in here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.row_of: dict[int, int] = {}
        self.turn_of: dict[int, int] = {}
        self._names: dict[int, str] = {}  # of arrays that only their row has: one of the arguments that they come from
        self._maker: dict[int, Operation] = {}

    def given(self, aval: Any, place: Place, rows: int) -> int:
        value = self.new(aval)
        if len(place.rows) < rows or rows == 1:
            self.row_of[value] = place.rows[0]
            if not self._is_number(value):
                self._names[value] = place.name
        return value

    def _is_number(self, value: int) -> bool:
        return math.prod(self.shapes[value].shape) == 1

    def add(self, eqn: core.JaxprEqn, arguments: Sequence[Any], scope: str, calls: Any) -> list[Any]:
        values = [value for value in arguments if isinstance(value, int)]
        arrays = {self.row_of[value]: value for value in values if value in self._names}
        if len(arrays) > 1:
            return self._apart(eqn, arguments, scope, calls, arrays)
        if eqn.effects:
            raise PipelineError(
                f"{eqn.primitive.name} {line_of(eqn)} in the optimiser has a side effect, which would be had on each "
                "row of the mesh, or on none: take it out."
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
        """Rewrites what takes arrays of several rows as operations that don't."""
        name = eqn.primitive.name
        if name in _CALLS:
            body = eqn.params[_CALLS[name]]
            jaxpr, consts = (body.jaxpr, body.consts) if isinstance(body, core.ClosedJaxpr) else (body, ())
            return self.inline(jaxpr, consts, arguments, scope, (eqn, *calls))
        if name == "cond":  # all branches, and the chosen one's results, as under vmap
            index, *given = arguments
            cases = [self.inline(one.jaxpr, one.consts, given, scope, (eqn, *calls)) for one in eqn.params["branches"]]
            return [self._chosen([index, *several]) for several in zip(*cases, strict=True)]
        (row, one), (other_row, other) = sorted(arrays.items())[:2]
        place = Operation(eqn, tuple(arguments), (), scope, calls).place
        raise PipelineError(
            f"The optimiser computes with {self._names[one]}, which is on row {row} of the mesh, and with "
            f"{self._names[other]}, which is on row {other_row}, in one operation: {name}, {place}. {REMEDY}"
        )

    def _chosen(self, atoms: Sequence[Any]) -> Any:
        shapes = [shape_of(self.shapes[atom] if isinstance(atom, int) else atom.aval) for atom in atoms]
        closed = jax.make_jaxpr(lax.select_n)(*shapes)
        return self.inline(closed.jaxpr, closed.consts, atoms)[0]

    def from_elsewhere(self, row: int, outputs: Any) -> set[int]:
        """The numbers of other rows that are needed to make these values on this row."""
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
        """Raises PipelineError if this is an array of another row."""
        if isinstance(output, int) and output in self._names and self.row_of[output] != row:
            raise PipelineError(
                f"The optimiser makes {name}, which is on row {row} of the mesh, of {self._names[output]}, which is on "
                f"row {self.row_of[output]}. {REMEDY}"
            )
