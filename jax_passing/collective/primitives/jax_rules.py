"""JAX's own rules of differentiation sum over the hosts, too, where an axis continues over them.

JAX casts values that are equal on all devices (`check_vma=True`) where they meet others, and sums over the mesh in the
transpose: over this host's devices only, as it doesn't know the others. Where such a rule meets an axis that
`init(axis_name=...)` declares, the sum goes over the hosts; where JAX doesn't let it, UsageError says what to write.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad

from jax_passing._compat import patches, stacks
from jax_passing.collective.axes import Extent, declared
from jax_passing.collective.naming.sites import new_site
from jax_passing.collective.naming.source_location import location_of
from jax_passing.collective.primitives.bucketed_sum import bucketed_sum
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.errors import UsageError
from jax_passing.host import scope as scopes

Rule = Callable[..., Any]

_inside = threading.local()  # .shard_map: how many transposes of shard_map(check_vma=False) are under way


def transposed_by_shard_map() -> bool:
    """Tells whether JAX transposes a shard_map(check_vma=False): it sums the gradients of its operands P() itself."""
    return getattr(_inside, "shard_map", 0) > 0


def _over_hosts(axes: Sequence[Any]) -> scopes.Scope | None:
    """Returns the scope, if one of `axes` continues over other hosts and their gradients are asked for."""
    session = scopes.of_session()
    if session is None or session.alone or not declared(axes, session):
        return None  # nothing of ours: other threads may do so as well
    scope = scopes.current()
    return None if scope is None or scope.per_host_gradients else scope


@patches.CAST.uses
def _cast(rule: Rule) -> Rule:
    def transpose(cotangent: Any, operand: Any, *, axes: Any) -> Any:
        scope = None if type(cotangent) is ad.Zero else _over_hosts(axes)
        if scope is None:
            return rule(cotangent, operand, axes=axes)
        location = location_of(stacks.traced_frames())._replace(transposing=True)
        strategy = "passing" if scope.strategy == "native" else scope.strategy
        path = "cast of JAX"
        site = new_site(
            scope.stream, strategy, DEFAULT_BUCKET_BYTES, [path], location, wire_dtype=scope.wire_dtype
        ).only([0], "t")
        return bucketed_sum([cotangent], Extent(tuple(axes), True, scope), site)

    return transpose


@patches.TRANSPOSE_OF_PSUM.uses
def _psum(rule: Rule) -> Rule:
    def transpose(cotangent: Any, operand: Any, *, axes: Any) -> Any:
        if type(cotangent) is not ad.Zero and _over_hosts(axes) is not None:
            raise UsageError(
                f"the gradient through jax.lax.psum over {axes} at {location_of(stacks.traced_frames())}: its sum "
                "stays inside this host, but init(axis_name=...) declares that the axis continues over the hosts, as "
                "all gradients over it do. Use jax_passing.psum (pmean); or, where host by host is meant, take the "
                "gradient in a `with jax_passing.per_host_gradients():`."
            )
        return rule(cotangent, operand, axes=axes)

    return transpose


@patches.TRANSPOSE_OF_SHARD_MAP.uses
def _shard_map(rule: Rule) -> Rule:
    def transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
        if params["check_vma"]:
            return rule(cotangents, *operands, **params)
        _check_specs(cotangents, operands, params)
        _inside.shard_map = getattr(_inside, "shard_map", 0) + 1
        try:
            return rule(cotangents, *operands, **params)
        finally:
            _inside.shard_map -= 1

    return transpose


def _check_specs(cotangents: Sequence[Any], operands: Sequence[Any], params: dict[str, Any]) -> None:
    """Checks the cotangents that JAX divides by the number of this host's devices, or sums over these: those P().

    Raises:
      UsageError: a result or operand P() is equal along an axis that continues over the hosts.
    """
    manual = params.get("newly_manual_axes", params.get("manual_axes", params["mesh"].axis_names))
    scope = _over_hosts(tuple(manual))
    if scope is None:
        return
    names = declared(tuple(manual), scope)
    results = [s for s, c in zip(params["out_specs"], cotangents, strict=True) if type(c) is not ad.Zero]
    linear = [s for s, x in zip(params["in_specs"], operands, strict=True) if not isinstance(x, _ARRAYS)]
    for kind, specs in (("result", results), ("operand", linear)):
        for spec in specs:
            if missing := [name for name in names if name not in _mentioned(spec)]:
                raise UsageError(
                    f"the gradient of shard_map(check_vma=False) or pmap, taken from outside, with respect to a {kind} "
                    f"that is equal along {missing[0]!r} (P()): JAX would sum it only over this host's devices, but "
                    "the axis continues over the hosts. Take the gradient inside the mapped function, or use "
                    "shard_map(check_vma=True)."
                )


_ARRAYS = (jax.Array, np.ndarray, np.generic, int, float, complex)  # tracers are jax.Arrays


def _mentioned(spec: Any) -> set[Any]:
    names: set[Any] = set()
    for entry in spec or ():
        names.update(entry if isinstance(entry, (tuple, list)) else () if entry is None else (entry,))
    return names
