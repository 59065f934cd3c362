"""Cases: derivatives through sums of activations."""

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


@in_both_modes("a sum in a scan over layers")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    def body(p: Any, x: Any, y: Any) -> Any:
        layers = jnp.stack([jnp.eye(4) * (i + 1) / 2 for i in range(3)])

        def deep_loss(p: Any, layers: Any) -> Any:
            p, layers = w.op.pvary((p, layers), "d")

            def layer(h: Any, weights: Any) -> Any:
                h = jnp.tanh(h @ weights)
                return h - cast(w.op.pmean(h.mean(0), "d")), None

            h, _ = jax.lax.scan(layer, x[0] @ p["w"] + p["b"], layers)
            return jnp.mean((h - y[0]) ** 2)

        return jax.grad(deep_loss, argnums=(0, 1))(p, layers)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("remat")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    def body(p: Any, x: Any, y: Any) -> Any:
        @jax.checkpoint
        def block(p: Any, x: Any) -> Any:
            h = jnp.tanh(x @ p["w"])
            return jnp.sin(h - cast(w.op.pmean(h.mean(0), "d")))

        return jax.grad(lambda p: jnp.mean((block(w.op.pvary(p, "d"), x[0]) - y[0]) ** 2))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("remat of the cast as well")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(jax.checkpoint(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0])))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("custom_vjp whose backward rule sums")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    @jax.custom_vjp
    def scaled(h: Any) -> Any:
        return h * 2

    scaled.defvjp(lambda h: (h * 2, None), lambda _, ct: (cast(w.op.pmean(ct, "d")) * 3,))

    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda p: jnp.mean((scaled(x[0] @ w.op.pvary(p, "d")["w"]) - y[0]) ** 2))(p)

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


@in_both_modes("vmap inside of shard_map")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    def body(p: Any, x: Any, y: Any) -> Any:
        def of_example(p: Any, x: Any, y: Any) -> Any:
            h = x @ p["w"]
            return jnp.mean((h - cast(w.op.pmean(h, "d")) - y) ** 2)

        return jax.grad(lambda p: jax.vmap(of_example, (None, 0, 0))(w.op.pvary(p, "d"), x[0], y[0]).mean())(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("a gradient for each example: vmap of grad", reference="reverse")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        of_example = jax.grad(lambda p, x, y: loss(w.op.pvary(p, "d"), x, y))
        return jax.vmap(of_example, (None, 0, 0))(p, x[0], y[0])

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("cond with a sum in a branch")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    def body(p: Any, x: Any, y: Any) -> Any:
        def gated_loss(p: Any) -> Any:
            p = w.op.pvary(p, "d")
            h = x[0] @ p["w"]
            h = jax.lax.cond(
                w.op.psum(x.sum(), "d") > -1e6, lambda h: h - cast(w.op.pmean(h.mean(0), "d")), lambda h: 2 * h, h
            )
            return jnp.mean((h - y[0]) ** 2)

        return jax.grad(gated_loss)(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("a jitted layer, called twice")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)

    def body(p: Any, x: Any, y: Any) -> Any:
        centred = jax.jit(lambda h: jnp.tanh(h) - cast(w.op.pmean(h.mean(0), "d")))
        return jax.grad(lambda p: jnp.mean((centred(centred(x[0] @ w.op.pvary(p, "d")["w"])) - y[0]) ** 2))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()
