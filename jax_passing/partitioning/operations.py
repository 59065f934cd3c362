"""Defines the operations of a traced model: equations of a jaxpr, and turns of scans, on numbered values."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.api_util import debug_info
from jax.extend import core

_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (jax.__file__, os.path.dirname(__file__))
)
_FLAX = f"{os.sep}flax{os.sep}"
CHECKPOINT = ("checkpoint", "remat2")
# Calls of jaxprs, by their primitives: the parameter that has the jaxpr.
JITTED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
WRAPPED = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", **dict.fromkeys(CHECKPOINT, "jaxpr")}

_DEBUG_INFO = debug_info("jax_passing.partition", lambda: None, (), {}).with_unknown_names()


@dataclass(frozen=True)
class Operation:
    """Applies one equation of a jaxpr to numbered values.

    Attributes:
      eqn: the equation.
      inputs: numbers of values, or literals.
      outputs: numbers of values.
      scope: the modules and named scopes that it is in.
      calls: the calls of jitted functions that it is inside of, the innermost first.
    """

    eqn: core.JaxprEqn
    inputs: tuple["int | core.Literal", ...]
    outputs: tuple[int, ...]
    scope: str
    calls: tuple[core.JaxprEqn, ...]

    @property
    def location(self) -> str:
        """Returns the module path and the source line in the user's code; the primitive's name if neither is known."""
        return " ".join(filter(None, (self.scope, self.source_line))) or self.eqn.primitive.name

    @property
    def source_line(self) -> str:
        """Returns the source line in the user's code, as "(model.py:41)"; empty if it isn't known."""
        # JAX doesn't record where users called its own functions for the equations inside of these functions.
        line = next(filter(None, map(source_line, (self.eqn, *self.calls))), "")
        return line and f"({line})"

    @property
    def values(self) -> list[int]:
        """Lists the inputs that aren't literals."""
        return [value for value in self.inputs if isinstance(value, int)]

    @property
    def key(self) -> Any:
        """Operations with the same key cost the same, given inputs of the same shapes."""
        # The key leaves out the values of scalars: with Flax, each layer's dropout has a number of its own.
        return self.eqn.primitive.name, re.sub(r"\S+:(\w+\[\])", r"\1", str(self.eqn.params))

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Computes the outputs from the inputs. Keeps the equation's source location and its derivative rules."""
        pairs = zip(self.eqn.invars, arrays, strict=True)
        given = {atom: array for atom, array in pairs if not isinstance(atom, core.Literal)}
        kept = [var for var in self.eqn.outvars if not isinstance(var, core.DropVar)]
        jaxpr = core.Jaxpr((), list(given), kept, [self.eqn], self.eqn.effects, _DEBUG_INFO)
        results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, ()))(*given.values())
        found = dict(zip(kept, results, strict=True))
        return [found.get(var) for var in self.eqn.outvars]


@dataclass(frozen=True)
class ScanTurn(Operation):
    """Runs one turn of a scan; `eqn` is the whole scan. Its rows of the stacked inputs come as arrays of one row.

    Attributes:
      scan: the number of the scan.
    """

    scan: int

    @property
    def key(self) -> Any:
        return "turn", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return run_turns(self.eqn, arrays, 1)


def run_turns(eqn: core.JaxprEqn, arrays: Sequence[Any], count: int) -> Sequence[Any]:
    """Runs `count` turns of a scan."""
    return eqn.primitive.bind(*arrays, **{**eqn.params, "length": count, "unroll": 1})


def scan_counts(eqn: core.JaxprEqn) -> tuple[int, int]:
    """Returns how many inputs of a scan all turns share, and how many values each turn hands to the next.

    The arrays that a scan goes over, and those that it stacks, have one dimension more than in its body. (The scan's
    parameters say the same, but they differ between versions of JAX.)
    """

    def stacked(outer: Sequence[Any], inner: Sequence[Any]) -> int:
        pairs = zip(outer, inner, strict=True)
        return sum(len(whole.aval.shape) > len(one.shape) for whole, one in pairs)

    body = eqn.params["jaxpr"]
    handed_on = len(eqn.outvars) - stacked(eqn.outvars, body.out_avals)
    return len(eqn.invars) - stacked(eqn.invars, body.in_avals) - handed_on, handed_on


@dataclass(frozen=True)
class TakeRow(Operation):
    """Takes one row of an array that a scan goes over."""

    row: int

    @property
    def key(self) -> Any:
        return "row", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [lax.slice_in_dim(arrays[0], self.row, self.row + 1)]


@dataclass(frozen=True)
class StackRows(Operation):
    """Stacks the rows that the turns of a scan have made, one each, in one array."""

    @property
    def key(self) -> Any:
        return "stack", id(self.eqn)

    def run(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [lax.concatenate(arrays, 0)]


def is_jaxpr(param: Any) -> bool:
    return isinstance(param, (core.Jaxpr, core.ClosedJaxpr))


def holds_operations(eqn: core.JaxprEqn) -> bool:
    """Tells whether the equation has jaxprs among its parameters."""
    return any(map(is_jaxpr, jax.tree.leaves(eqn.params, is_leaf=is_jaxpr)))


def source_line(eqn: core.JaxprEqn) -> str:
    """Returns the innermost line of the user's code that made the equation, as "model.py:41"; empty if unknown."""
    traceback = eqn.source_info.traceback
    frames: list[Any] = traceback.frames if traceback is not None else []
    for frame in frames:
        if not frame.file_name.startswith(_LIBRARIES) and _FLAX not in frame.file_name:
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""
