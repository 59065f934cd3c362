"""The primitives `passing_rank` and `passing_world_size`, for what a program learns of its session when it runs.

The rank isn't known when a program is traced: so the hosts' programs are alike. In an elastic session the number of
hosts isn't, either: so its programs outlive a change of it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jax_passing.collective.runtime import host_calls, platforms
from jax_passing.collective.runtime.evaluation import evaluate
from jax_passing.collective.runtime.handlers import register_ffi
from jax_passing.errors import UsageError
from jax_passing.host import scope as scopes
from jax_passing.host import session

passing_rank_p = Primitive("passing_rank")
passing_world_size_p = Primitive("passing_world_size")


def rank() -> jax.Array:
    """Returns int32[], this host's rank."""
    index: jax.Array = passing_rank_p.bind()
    return index


def host_count(scope: scopes.Scope) -> "int | jax.Array":
    """Returns the number of hosts: int32[] of the weak type of Python's numbers where only the running program knows
    it."""
    if scope.world_size is not None:
        return scope.world_size
    count: jax.Array = passing_world_size_p.bind()
    return count


def _define(primitive: Primitive, tell: Callable[[session.Session], int], weak_type: bool) -> None:
    """Makes the primitive int32[], without operands: a number that the session tells."""

    def lower(ctx: mlir.LoweringRuleContext) -> Sequence[Any]:
        register_ffi()
        result: Sequence[Any] = jax.ffi.ffi_lowering(primitive.name)(ctx)
        return result

    def lower_by_host_call(ctx: mlir.LoweringRuleContext) -> Sequence[Any]:
        return host_calls.call(ctx, ask, [], [], ctx.avals_out, has_side_effect=False)

    def ask() -> Sequence[np.ndarray]:
        current = session.current()
        if current is None:
            raise UsageError(
                "no session: call jax_passing.init() before running a program that asks for its rank, or for the "
                "number of hosts"
            )
        return [np.array(tell(current), np.int32)]

    primitive.def_impl(functools.partial(evaluate, primitive))
    primitive.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype(np.int32), weak_type=weak_type))
    batching.primitive_batchers[primitive] = lambda operands, dims: (primitive.bind(), None)
    platforms.register_lowering(primitive, cpu=lower, cuda=lower, tpu=lower_by_host_call)


_define(passing_rank_p, lambda current: current.rank, weak_type=False)
_define(passing_world_size_p, lambda current: current.world_size, weak_type=True)
