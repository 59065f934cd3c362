"""Cases: derivatives through sums of activations.

One host tests sums in loops, branches and the like (tests/jax_passing/collective/test_transforms.py), and the
randomised search draws them.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from support.jax.gradients.cases import ROWS, Outcome, World, batch_norm, case, in_both_modes, loss, on_each


@in_both_modes("d/dv sum(v * psum(v))")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)
    body = lambda x: jax.grad(lambda v: jnp.sum(v * cast(w.op.psum(v, "d"))))(x)  # noqa: E731
    return (), w.spmd(body, P("d"), P("d"), vma)(w.x)


@case("d/dv sum(v * psum(v)), by JAX's implicit cast")
def _(w: World) -> Outcome:
    body = lambda x: jax.grad(lambda v: jnp.sum(v * w.op.psum(v, "d")))(x)  # noqa: E731
    return (), w.spmd(body, P("d"), P("d"))(w.x)


@case("d/dv sum(v * pvary(psum(v))) without types", raises="UsageError", reference="nothing")
def _(w: World) -> Outcome:
    body = lambda x: jax.grad(lambda v: jnp.sum(v * w.op.pvary(w.op.psum(v, "d"), "d")))(x)  # noqa: E731
    return (), w.spmd(body, P("d"), P("d"), False)(w.x)


@in_both_modes("synchronised batch norm")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        def normed_loss(p: Any, x: Any) -> Any:
            return loss(w.op.pvary(p, "d"), batch_norm(w, x, vma), y[0])

        return jax.grad(normed_loss, argnums=(0, 1))(p, x[0])

    grads, rows = w.spmd(body, ROWS, (P(), P("d")), vma)(w.params, w.x, w.y)
    return grads, rows


@case("synchronised batch norm, by JAX's implicit cast")
def _(w: World) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        def normed_loss(p: Any) -> Any:
            h = x[0] @ w.op.pvary(p, "d")["w"]
            h = h - w.op.pmean(h.mean(0), "d")
            return jnp.mean((h - y[0]) ** 2)

        return jax.grad(normed_loss)(p)

    return w.spmd(body)(w.params, w.x, w.y), ()


@in_both_modes("remat of the cast as well")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(jax.checkpoint(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0])))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("custom_jvp around a sum")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    @jax.custom_jvp
    def centred(h: Any) -> Any:
        return h - cast(w.op.pmean(h.mean(0), "d"))

    @centred.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return centred(*primals), 2 * centred(*tangents)

    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda p: jnp.mean((centred(x[0] @ w.op.pvary(p, "d")["w"]) - y[0]) ** 2))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("a gradient for each example: vmap of grad", reference="reverse")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        of_example = jax.grad(lambda p, x, y: loss(w.op.pvary(p, "d"), x, y))
        return jax.vmap(of_example, (None, 0, 0))(p, x[0], y[0])

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()
