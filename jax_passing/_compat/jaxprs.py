"""Traced programs: which of them sum."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from jax._src import core

summing: set[Any] = set()
"""The primitives that are sums, or are made of them when they are lowered."""

_with_sums: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def holds_sums(jaxpr: Any) -> bool:
    """Whether this program, or any inside of it, calls one of those primitives."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    found = _with_sums.get(jaxpr)
    if found is None:
        found = any(
            equation.primitive in summing or any(map(holds_sums, bodies(equation.params))) for equation in jaxpr.eqns
        )
        _with_sums[jaxpr] = found
    return found


def bodies(params: Mapping[str, Any]) -> list[Any]:
    """The programs inside of an equation."""
    return list(core.jaxprs_in_params(dict(params)))
