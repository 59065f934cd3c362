"""Splits scans over layers into their turns: a scan that isn't cut makes the stage that has it the slowest by far."""

from dataclasses import replace
from typing import Any

from jax_passing.partitioning.operations import Operation, ScanTurn, StackRows, TakeRow, scan_counts
from jax_passing.partitioning.traced_model import Row, TracedModel, in_chain, reached_from


def unroll(model: TracedModel) -> TracedModel:
    """Returns the same model, in which each turn of a scan over layers is an operation.

    A scan over layers is in the chain, and goes over parameters and over no values of the chain. A scan over
    activations (over time, say) stays whole, as all of them would have to cross a cut inside of it. Neighbouring turns
    in one stage become one scan again (`stages.py`). The rows of parameters that turns use are values of their own, so
    a stage holds the rows of its own layers only.
    """
    unrolled = _Unrolled(model)
    of_chain = {
        value
        for operation, is_in_chain in zip(model.operations, in_chain(model), strict=True)
        for value in operation.outputs
        if is_in_chain
    }
    of_params = reached_from(model, model.params)
    for scan, operation in enumerate(model.operations):
        if of_chain.intersection(operation.outputs) and _goes_over_layers(operation, of_chain, of_params):
            unrolled.add_turns(scan, operation)
        else:
            unrolled.operations.append(operation)
    return replace(
        model,
        operations=tuple(unrolled.operations),
        shapes=tuple(unrolled.shapes),
        rows=unrolled.rows,
        stacked=unrolled.stacked,
    )


def _goes_over_layers(operation: Operation, of_chain: set[int], of_params: set[int]) -> bool:
    if operation.eqn.primitive.name != "scan" or operation.eqn.params["length"] < 2:
        return False
    gone_over = operation.inputs[sum(scan_counts(operation.eqn)) :]
    return bool(of_params.intersection(gone_over)) and not of_chain.intersection(gone_over)


class _Unrolled:
    def __init__(self, model: TracedModel):
        self.operations: list[Operation] = []
        self.shapes = list(model.shapes)
        self.rows: dict[int, Row] = {}
        self.stacked: dict[int, tuple[int, ...]] = {}
        used = {value for operation in model.operations for value in operation.values}
        self._only_outputs = {value for value in model.outputs if isinstance(value, int) and value not in used}
        self._params = set(model.params)

    def _new(self, shape: Any) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def add_turns(self, scan: int, operation: Operation) -> None:
        details = operation.eqn.params
        length = details["length"]
        shared_count, carry_count = scan_counts(operation.eqn)
        carry_end = shared_count + carry_count
        shared, carry = operation.inputs[:shared_count], operation.inputs[shared_count:carry_end]
        carried, stacked = operation.outputs[:carry_count], operation.outputs[carry_count:]
        made_by_row: list[list[int]] = [[] for _ in range(length)]
        rows = [[self._row(operation, value, row) for value in operation.inputs[carry_end:]] for row in range(length)]
        for number in range(length):
            row = length - 1 - number if details["reverse"] else number
            is_last = number == length - 1
            results = carried if is_last else tuple(self._new(self.shapes[value]) for value in carried)
            made_by_row[row] = [self._new(_one_row(self.shapes[value])) for value in stacked]
            outputs = (*results, *made_by_row[row])
            inputs = (*shared, *carry, *rows[row])
            self.operations.append(ScanTurn(operation.eqn, inputs, outputs, operation.scope, operation.calls, scan))
            carry = results
        for index, value in enumerate(stacked):
            pieces = tuple(made[index] for made in made_by_row)
            if value in self._only_outputs:
                self.stacked[value] = pieces
                continue
            self.operations.append(StackRows(operation.eqn, pieces, (value,), operation.scope, operation.calls))

    def _row(self, operation: Operation, value: Any, row: int) -> int:
        """Returns the value that is this row of a value that the scan goes over."""
        assert isinstance(value, int), "a scan goes over arrays, and literals are scalars"
        result = self._new(_one_row(self.shapes[value]))
        if value in self._params:
            self.rows[result] = Row(value, row)
        else:
            taken = TakeRow(operation.eqn, (value,), (result,), operation.scope, operation.calls, row)
            self.operations.append(taken)
        return result


def _one_row(shape: Any) -> Any:
    return shape.update(shape=(1, *shape.shape[1:]))
