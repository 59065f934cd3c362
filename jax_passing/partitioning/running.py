"""Runs operations on numbered values; a segment so that its backward pass computes it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core

from jax_passing.partitioning.operations import Operation, ScanTurn, run_turns, scan_counts


@dataclass(frozen=True)
class Segment:
    """Describes operations of which a stage keeps their inputs only.

    Attributes:
      operations: in order, copies of those that aren't in the chain included.
      inputs, outputs: the values that they take, and those that are used behind them.
    """

    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def run(self, known: Mapping[int, Any], constants: Mapping[int, Any]) -> dict[int, Any]:
        """Returns the outputs. `known`: has the inputs."""

        def run(arrays: Sequence[Any]) -> list[Any]:
            own = dict(constants) | dict(zip(self.inputs, arrays, strict=True))
            run_operations(self.operations, own)
            return [own[value] for value in self.outputs]

        results = jax.checkpoint(run)([known[value] for value in self.inputs])
        return dict(zip(self.outputs, results, strict=True))


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
