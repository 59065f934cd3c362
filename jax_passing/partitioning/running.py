"""Runs operations on numbered values, and makes functions of them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend import core

from jax_passing.partitioning.operations import Operation, ScanTurn, run_turns, scan_counts


@dataclass(frozen=True)
class Part:
    """Makes some operations a function of arrays.

    Attributes:
      inputs: the values that it takes, in this order.
      outputs: the values, or literals, that it returns.
      operations: the operations, in order.
      constants: arrays that they use, by value.
    """

    inputs: tuple[int, ...]
    outputs: tuple["int | core.Literal", ...]
    operations: tuple[Operation, ...]
    constants: Mapping[int, Any]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        known = dict(self.constants) | dict(zip(self.inputs, arrays, strict=True))
        run_operations(self.operations, known)
        return [atom.val if isinstance(atom, core.Literal) else known[atom] for atom in self.outputs]


def part_of(operations: Sequence[Operation], outputs: Sequence[Any], constants: Mapping[int, Any]) -> Part:
    made = {value for operation in operations for value in operation.outputs}
    used = {*values_of(outputs), *(value for operation in operations for value in operation.values)}
    inputs = used - made - set(constants)
    return Part(tuple(sorted(inputs)), tuple(outputs), tuple(operations), constants)


def needed(operations: Sequence[Operation], outputs: Sequence[Any], given: Set[int] = frozenset()) -> list[Operation]:
    """Selects the operations that are needed to make the outputs from the given values."""
    wanted = set(values_of(outputs)) - given
    found = []
    for operation in reversed(operations):
        if wanted.intersection(operation.outputs):
            wanted.update(value for value in operation.values if value not in given)
            found.append(operation)
    return found[::-1]


def values_of(atoms: Sequence[Any]) -> list[int]:
    """Returns those that aren't literals."""
    return [atom for atom in atoms if isinstance(atom, int)]


def run_operations(operations: Sequence[Operation], known: dict[int, Any]) -> None:
    """Computes the operations' outputs, and adds them to the known values."""

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for run in _runs(operations):
        if len(run) == 1:
            results = run[0].run([read(atom) for atom in run[0].inputs])
            known.update(zip(run[0].outputs, results, strict=True))
        else:
            _run_together(run, known, read)


def _runs(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Groups the operations: neighbouring turns of one scan together, any other operation alone."""
    runs: list[list[Operation]] = []
    for operation in operations:
        last = runs[-1][-1] if runs else None
        if isinstance(operation, ScanTurn) and isinstance(last, ScanTurn) and last.scan == operation.scan:
            runs[-1].append(operation)
        else:
            runs.append([operation])
    return runs


def _run_together(turns: Sequence[Operation], known: dict[int, Any], read: Any) -> None:
    """Runs neighbouring turns as one scan, so that XLA compiles its body once."""
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
