"""Cases: maxima, all_gather and psum_scatter."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from support.jax.gradients.cases import Outcome, World, in_both_modes


@in_both_modes("pmax and pmin")
def _(w: World, vma: bool) -> Outcome:
    return w.spmd(lambda x: (w.op.pmax(x[0], "d"), w.op.pmin(x[0], "d")), P("d"), check_vma=vma)(w.x), ()


@in_both_modes("all_gather and its gradient")
def _(w: World, vma: bool) -> Outcome:
    def body(x: Any) -> Any:
        def f(v: Any) -> Any:
            everyone = w.op.all_gather(v, "d")
            return jnp.sum(jnp.sin(everyone) * (1 + jnp.arange(everyone.shape[0])[:, None, None] + v[0, 0]))

        return jax.grad(f)(x[0])[None]

    return (), w.spmd(body, P("d"), P("d"), vma)(w.x)


@in_both_modes("psum_scatter and its gradient")
def _(w: World, vma: bool) -> Outcome:
    def body(x: Any) -> Any:
        def f(v: Any) -> Any:
            big = jnp.outer(jnp.arange(1.0, 1 + w.op.axis_size("d")), v[0])
            return jnp.sum(jnp.sin(w.op.psum_scatter(big, "d", tiled=True)) * v[1])

        return jax.grad(f)(x[0])[None]

    return (), w.spmd(body, P("d"), P("d"), vma)(w.x)


@in_both_modes("parameters in parts: all_gather, loss, grad")
def _(w: World, vma: bool) -> Outcome:
    def body(part: Any, x: Any) -> Any:
        def f(part: Any) -> Any:
            return jnp.mean(jnp.tanh(x[0] @ w.op.all_gather(part[0], "d", tiled=True).reshape(3, -1)) ** 2)

        return jax.grad(f)(part)

    return (), w.spmd(body, P("d"), P("d"), vma)(w.x[:, :3, :], w.x)
