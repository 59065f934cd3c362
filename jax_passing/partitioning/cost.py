"""Counts the cost of equations of a jaxpr from shapes alone: floating-point operations, bytes read and written."""

import math
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from jax_passing.partitioning.arrays import bytes_of
from jax_passing.partitioning.flops import flops_of


@dataclass(frozen=True)
class Cost:
    """Counts operations and bytes.

    Attributes:
      flops: additions, multiplications and comparisons of elements; a multiply-add counts as 2.
      bytes: read and written, as if each equation ran by itself. XLA fuses some of them.
    """

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def time_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Returns how long it takes on a device that reads and writes while it computes (Williams et al., Roofline,
        CACM 52(4), 2009)."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)

    def times(self, count: float) -> "Cost":
        return Cost(self.flops * count, self.bytes * count)


def _bytes(eqn: core.JaxprEqn) -> float:
    """Counts all inputs and outputs; of an array of which only a part is looked up or replaced, that part."""
    name = eqn.primitive.name
    sizes = [bytes_of(atom.aval) for atom in eqn.invars]
    made = sum(bytes_of(var.aval) for var in eqn.outvars)
    if name in ("gather", "slice", "dynamic_slice"):
        return 2 * made + sum(sizes[1:])
    if name == "dynamic_update_slice":
        return 2 * sizes[1] + sum(sizes[2:])
    if name.startswith("scatter"):  # the part is read, changed by the updates, and written
        return sizes[1] + (2 if name == "scatter" else 3) * sizes[2]
    return sum(sizes) + made


def _kernel_cost(eqn: core.JaxprEqn) -> Cost:
    """Returns the cost of a kernel of Pallas: what its author says, else of all its programs.

    A block is moved whenever its index changes from one program to the next, that is with each turn of the last axis of
    the grid that the index depends on. An axis whose length isn't known before it runs counts as one turn.
    """
    said, grid = eqn.params.get("cost_estimate"), eqn.params["grid_mapping"]
    if said is not None:
        return Cost(float(said.flops + said.transcendentals), float(said.bytes_accessed))
    lengths = [length if isinstance(length, int) else 1 for length in grid.grid]
    programs = cost_of_jaxpr(eqn.params["jaxpr"]).times(math.prod(lengths))
    moved = 0.0
    for block in grid.block_mappings:
        jaxpr = block.index_map_jaxpr.jaxpr
        last = _last_axis(jaxpr, len(lengths))
        moved += bytes_of(block.block_aval) * math.prod(lengths[: last + 1])
    return Cost(programs.flops, moved)


def _last_axis(jaxpr: core.Jaxpr, axes: int) -> int:
    """Returns the last of the first inputs on which the outputs depend; -1 if they depend on none."""
    depends = {id(var): axis for axis, var in enumerate(jaxpr.invars[:axes])}

    def last_of(atoms: Any) -> int:
        return max((depends.get(id(atom), -1) for atom in atoms), default=-1)

    for eqn in jaxpr.eqns:
        depends.update(dict.fromkeys(map(id, eqn.outvars), last_of(eqn.invars)))
    return last_of(jaxpr.outvars)


def cost_of_equation(eqn: core.JaxprEqn) -> Cost:
    """Counts all turns of a scan, and the dearest branch of a `cond`.

    A `while` counts as one turn, because its number of turns isn't known. (XLA counts a scan as one turn, too.)
    """
    name, params = eqn.primitive.name, eqn.params
    match name:
        case "scan":
            return cost_of_jaxpr(params["jaxpr"]).times(params["length"])
        case "while":
            return cost_of_jaxpr(params["body_jaxpr"]) + cost_of_jaxpr(params["cond_jaxpr"])
        case "cond":
            return max(
                (cost_of_jaxpr(branch) for branch in params["branches"]), key=lambda cost: (cost.flops, cost.bytes)
            )
        case "pallas_call":
            return _kernel_cost(eqn)
        case "custom_linear_solve":  # its other jaxprs are for derivatives
            return cost_of_jaxpr(params["jaxprs"].solve)
    for called in ("jaxpr", "call_jaxpr", "fun_jaxpr", "callee"):
        if called in params and not name.startswith("reduce"):  # the jaxpr of a reduction is for two elements
            return cost_of_jaxpr(params[called])
    return Cost(flops_of(eqn), _bytes(eqn))


def cost_of_jaxpr(jaxpr: Any) -> Cost:
    """Adds up the costs of the equations of a Jaxpr or a ClosedJaxpr."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum((cost_of_equation(eqn) for eqn in inner.eqns), start=Cost())
