"""Cases: several axes, and names that vmap and pmap declare."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from support.jax.gradients.cases import Outcome, World, case, in_both_modes, loss


def _two_axes(w: World, vma: bool, wide: bool, total: Callable[[Any], Any]) -> Outcome:
    def body(p: Any, x: Any, y: Any) -> Any:
        if vma:
            p = jax.lax.pcast(p, ("d", "a"), to="varying")
        return total(jax.grad(loss)(p, x[0], y[0]))

    specs = (P(), P(("d", "a")), P(("d", "a")))
    return w.spmd(body, specs, check_vma=vma, mesh=w.grid(wide=wide))(w.params, w.x, w.y), ()


def _laws(wide: bool) -> None:
    side = "d" if wide else "a"

    @in_both_modes(f"sum over both axes, the devices along {side}")
    def _(w: World, vma: bool) -> Outcome:
        return _two_axes(w, vma, wide, lambda tree: w.op.psum(tree, ("d", "a")))

    @in_both_modes(f"sum over one axis and then the other, the devices along {side}")
    def _(w: World, vma: bool) -> Outcome:
        return _two_axes(w, vma, wide, lambda tree: w.op.psum(w.op.psum(tree, "a"), "d"))

    @in_both_modes(f"sum over the other axis and then the one, the devices along {side}")
    def _(w: World, vma: bool) -> Outcome:
        return _two_axes(w, vma, wide, lambda tree: w.op.psum(w.op.psum(tree, "d"), "a"))

    @case(f"grad inside, of parameters cast to both axes, the devices along {side}")
    def _(w: World) -> Outcome:
        body = lambda p, x, y: jax.grad(lambda p: loss(w.op.pvary(p, ("d", "a")), x[0], y[0]))(p)  # noqa: E731
        specs = (P(), P(("d", "a")), P(("d", "a")))
        return w.spmd(body, specs, mesh=w.grid(wide=wide))(w.params, w.x, w.y), ()


_laws(True)
_laws(False)


@in_both_modes("sums over the axis that stays inside, over none, and of numbers")
def _(w: World, vma: bool) -> Outcome:
    def body(x: Any) -> Any:
        equal = jnp.array([w.op.psum(1, "d"), w.op.psum(1, "a"), w.op.psum(1, ("d", "a")), w.op.axis_size("d")])
        index = jnp.float32(w.op.axis_index("d"))
        x, inside = w.op.psum(x, ()), w.op.psum(x, "a")
        return equal, (x, jnp.broadcast_to(inside, x.shape), jnp.broadcast_to(index, x.shape))

    rows = P(("d", "a"))
    out = (P(), (rows, P("d") if vma else rows, rows))
    equal, (x, inside, index) = w.spmd(body, rows, out, vma, w.grid(wide=True))(w.x)
    return equal, (x, inside, index)


def _row_wise(w: World) -> Callable[[Any], Any]:
    return lambda v: v * w.op.psum(v, "d")


@case("vmap over a declared name, grad inside", local_only=True)
def _(w: World) -> Outcome:
    return (), jax.jit(jax.vmap(jax.grad(lambda v: jnp.sum(_row_wise(w)(v))), axis_name="d"))(w.x)


@case("vmap over a declared name, grad outside", local_only=True, raises="UsageError")
def _(w: World) -> Outcome:
    return (), jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(_row_wise(w), axis_name="d")(x))))(w.x)


@case("vmap over a declared name, grad of cast parameters inside", local_only=True, reference="reverse")
def _(w: World) -> Outcome:
    gradient = jax.grad(lambda p, x, y: loss(w.op.pvary(p, "d"), x, y))
    return jax.jit(jax.vmap(gradient, (None, 0, 0), None, axis_name="d"))(w.params, w.x, w.y), ()


@case(
    "vmap over a declared name, grad of cast parameters outside",
    local_only=True,
    reference="nothing",
    raises="UsageError",
)
def _(w: World) -> Outcome:
    body = lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x, y), "d")  # noqa: E731
    total = jax.vmap(body, (None, 0, 0), None, axis_name="d")
    return jax.jit(jax.grad(total))(w.params, w.x, w.y), ()


@case("pmap, sum of the gradient", local_only=True)
def _(w: World) -> Outcome:
    body = lambda p, x, y: w.op.psum(jax.grad(loss)(p, x, y), "d")  # noqa: E731
    mapped = jax.pmap(body, axis_name="d", in_axes=(None, 0, 0), out_axes=None, devices=w.devices)
    return mapped(w.params, w.x, w.y), ()


@case("pmap, grad of cast parameters inside", local_only=True)
def _(w: World) -> Outcome:
    gradient = jax.grad(lambda p, x, y: loss(w.op.pvary(p, "d"), x, y))
    mapped = jax.pmap(gradient, axis_name="d", in_axes=(None, 0, 0), out_axes=None, devices=w.devices)
    return mapped(w.params, w.x, w.y), ()


@case("pmap, grad of rows outside", local_only=True)
def _(w: World) -> Outcome:
    mapped = jax.pmap(_row_wise(w), axis_name="d", devices=w.devices)
    return (), jax.grad(lambda x: jnp.sum(mapped(x)))(w.x)


@case("pmap, grad of cast parameters outside", local_only=True, reference="nothing", raises="UsageError")
def _(w: World) -> Outcome:
    body = lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x, y), "d")  # noqa: E731
    mapped = jax.pmap(body, axis_name="d", in_axes=(None, 0, 0), out_axes=None, devices=w.devices)
    return jax.grad(mapped)(w.params, w.x, w.y), ()
