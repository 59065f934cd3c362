"""Cases: gradients of parameters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from support.jax.gradients.cases import ROWS, Outcome, World, case, in_both_modes, loss


@in_both_modes("sum of the gradient")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        if vma:
            p = jax.lax.pcast(p, "d", to="varying")
        return w.op.psum(jax.grad(loss)(p, x[0], y[0]), "d")

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("grad inside, of cast parameters")
def _(w: World, vma: bool) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0]))(p)

    return w.spmd(body, check_vma=vma)(w.params, w.x, w.y), ()


@in_both_modes("grad inside, of cast and closed-over parameters")
def _(w: World, vma: bool) -> Outcome:
    def body(x: Any, y: Any) -> Any:
        return jax.grad(lambda p: loss(w.op.pvary(p, "d"), x[0], y[0]))(jax.tree.map(jnp.asarray, w.params))

    return w.spmd(body, ROWS[1:], check_vma=vma)(w.x, w.y), ()


@case("value_and_grad inside, with summed metrics")
def _(w: World) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        def with_metrics(p: Any) -> Any:
            value = loss(w.op.pvary(p, "d"), x[0], y[0])
            return value, {"loss": w.op.pmean(value, "d"), "examples": w.op.psum(x.shape[1], "d")}

        (_, metrics), grads = jax.value_and_grad(with_metrics, has_aux=True)(p)
        return grads, metrics

    return w.spmd(body)(w.params, w.x, w.y), ()


@case("grad inside, of a summed loss of cast parameters")
def _(w: World) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda p: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"))(p)

    return w.spmd(body)(w.params, w.x, w.y), ()


@in_both_modes("grad outside, of a summed loss of cast parameters", raises={False: "UsageError"}, reference="nothing")
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"), check_vma=vma)
    return jax.grad(step)(w.params, w.x, w.y), ()


@in_both_modes("grad outside, of a mean loss of cast parameters", raises={False: "UsageError"}, reference="nothing")
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.pmean(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"), check_vma=vma)
    return jax.jit(jax.grad(step))(w.params, w.x, w.y), ()


@in_both_modes("grad outside, of cast and closed-over parameters", raises={False: "UsageError"}, reference="nothing")
def _(w: World, vma: bool) -> Outcome:
    def total(p: Any, x: Any, y: Any) -> Any:
        body = lambda x, y: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d")  # noqa: E731
        return jax.shard_map(
            body, mesh=jax.sharding.Mesh(np.array(w.devices), ("d",)), in_specs=ROWS[1:], out_specs=P(), check_vma=vma
        )(x, y)

    return jax.jit(jax.grad(total))(w.params, w.x, w.y), ()


@in_both_modes(
    "grad outside, of what enters by rows", raises={False: "UsageError"}, reference="nothing", right_on_global=True
)
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(p, x[0], y[0]), "d"), check_vma=vma)
    return (), jax.grad(step, argnums=1)(w.params, w.x, w.y)


@case("grad inside, of uncast parameters, by JAX's implicit cast")
def _(w: World) -> Outcome:
    body = lambda p, x, y: jax.grad(lambda p: w.op.psum(loss(p, x[0], y[0]), "d"))(p)  # noqa: E731
    return w.spmd(body)(w.params, w.x, w.y), ()


@case("sum of the gradient of uncast parameters", raises="UnvaryingInputError")
def _(w: World) -> Outcome:
    return w.spmd(lambda p, x, y: w.op.psum(jax.grad(loss)(p, x[0], y[0]), "d"))(w.params, w.x, w.y), ()


@in_both_modes(
    "grad outside, of a summed loss of uncast parameters",
    raises={False: "UsageError"},
    reference="nothing",
    right_on_global=True,
)
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(p, x[0], y[0]), "d"), check_vma=vma)
    return jax.grad(step)(w.params, w.x, w.y), ()
