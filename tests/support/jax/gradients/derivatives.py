"""Cases: higher and forward derivatives."""

from typing import Any

import jax
import jax.numpy as jnp

from support.jax.gradients.cases import Outcome, World, case, in_both_modes, loss


@in_both_modes("grad of a gradient")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0]))
        return jax.grad(lambda p: sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(gradient(p))))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("product of a Hessian and a vector")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0]))
        return jax.jvp(gradient, (p,), (jax.tree.map(jnp.cos, p),))[1]

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@case("grad of a gradient, outside", reference="nothing")
def _(w: World) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"))
    gradient = jax.grad(step)
    return jax.grad(lambda p: sum(jnp.sum(jnp.cos(g)) for g in jax.tree.leaves(gradient(p, w.x, w.y))))(w.params), ()


@in_both_modes("jvp")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        f = lambda p, x: w.op.psum(loss(w.op.pvary(p, "d"), x, y[0]), "d")  # noqa: E731
        return jax.jvp(f, (p, x[0]), (jax.tree.map(jnp.cos, p), jnp.sin(x[0])))

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("jvp outside")
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(p, x[0], y[0]), "d"), check_vma=vma)
    f = lambda p: step(p, w.x, w.y)  # noqa: E731
    return jax.jvp(f, (w.params,), (jax.tree.map(jnp.cos, w.params),)), ()


@case("linearize, and its transpose")
def _(w: World) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        f = lambda p: w.op.psum(jnp.tanh(x[0] @ w.op.pvary(p, "d")["w"]), "d")  # noqa: E731
        out, linear = jax.linearize(f, p)
        (back,) = jax.linear_transpose(linear, p)(jnp.cos(out))
        return linear(jax.tree.map(jnp.cos, p)), back

    return w.spmd(body)(w.params, w.x, w.y), ()
