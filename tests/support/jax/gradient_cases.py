"""Derivatives through sums, as a table. Each case is one program, run by every host and by one process on all devices.

A case gets a `World`, computes on the devices there, and returns (what is equal on all devices and hosts, what has a
row for each device). The operations are those of jax_passing or, in the one process, of jax.lax.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

Outcome = tuple[Any, Any]
ROWS = (P(), P("d"), P("d"))  # parameters, inputs, targets


class World(NamedTuple):
    """The world in which a program runs.

    Attributes:
      devices: of its meshes.
      hosts: how many hosts these meshes span.
      psum, pmean, ..., axis_size: the operations.
      params, x, y: parameters that are equal everywhere, and a row of inputs and of targets for each device.
    """

    devices: list[Any]
    hosts: int
    op: SimpleNamespace
    params: Any
    x: Any
    y: Any

    def spmd(
        self, body: Any, in_specs: Any = ROWS, out_specs: Any = P(), check_vma: bool = True, mesh: Any = None
    ) -> Any:
        mesh = jax.sharding.Mesh(np.array(self.devices), ("d",)) if mesh is None else mesh
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma))

    def grid(self, *, wide: bool) -> jax.sharding.Mesh:
        """The devices along "d", which goes on over the hosts, and "a", which stays inside each."""
        shape = (-1, 1) if wide else (self.hosts, -1)
        return jax.sharding.Mesh(np.reshape(np.array(self.devices), shape), ("d", "a"))


class Case(NamedTuple):
    """
    Attributes:
      run: the program.
      raises: name of the error that it must end with instead of a value, if so.
      reference: what `pvary` is in the one process without check_vma: "cast", so that its transpose is the sum over all
        devices, where `grad` is inside ("reverse": the same for vmap, but without forward derivatives); "nothing" where
        it is outside, as shard_map and vmap sum up there.
      local_only: it makes no sense on a mesh over the hosts.
      right_on_global: there it is right, as JAX knows all devices.
    """

    run: Callable[[World], Outcome]
    raises: str | None
    reference: str
    local_only: bool
    right_on_global: bool


CASES: dict[str, Case] = {}


def case(
    name: str,
    *,
    raises: str | None = None,
    reference: str = "cast",
    local_only: bool = False,
    right_on_global: bool = False,
) -> Callable[[Callable[[World], Outcome]], Callable[[World], Outcome]]:
    def add(run: Callable[[World], Outcome]) -> Callable[[World], Outcome]:
        CASES[name] = Case(run, raises, reference, local_only, right_on_global)
        return run

    return add


def in_both_modes(
    name: str, *, raises: dict[bool, str] | None = None, reference: str = "cast", right_on_global: bool = False
) -> Callable[[Callable[[World, bool], Outcome]], None]:
    """A case for check_vma=True and one for False. `raises` by check_vma."""

    def add(run: Callable[[World, bool], Outcome]) -> None:
        for vma in (True, False):
            full = f"{name}, check_vma={vma}"
            add_case = case(full, raises=(raises or {}).get(vma), reference=reference, right_on_global=right_on_global)
            add_case(lambda w, vma=vma: run(w, vma))

    return add


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)


def on_each(w: World, vma: bool) -> Callable[[Any], Any]:
    """Returns what makes a sum, equal on all devices, vary again: a cast, if types tell the two apart."""
    return (lambda tree: w.op.pvary(tree, "d")) if vma else (lambda tree: tree)


def batch_norm(w: World, x: Any, vma: bool) -> Any:
    cast = on_each(w, vma)
    mean = cast(w.op.pmean(x.mean(0), "d"))
    variance = cast(w.op.pmean(((x - mean) ** 2).mean(0), "d"))
    return (x - mean) * jax.lax.rsqrt(variance + 1e-3)


# --- gradients of parameters


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


@in_both_modes(
    "grad outside, of a summed loss of cast parameters", raises={False: "GradientError"}, reference="nothing"
)
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"), check_vma=vma)
    return jax.grad(step)(w.params, w.x, w.y), ()


@in_both_modes("grad outside, of a mean loss of cast parameters", raises={False: "GradientError"}, reference="nothing")
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.pmean(loss(w.op.pvary(p, "d"), x[0], y[0]), "d"), check_vma=vma)
    return jax.jit(jax.grad(step))(w.params, w.x, w.y), ()


@in_both_modes("grad outside, of cast and closed-over parameters", raises={False: "GradientError"}, reference="nothing")
def _(w: World, vma: bool) -> Outcome:
    def total(p: Any, x: Any, y: Any) -> Any:
        body = lambda x, y: w.op.psum(loss(w.op.pvary(p, "d"), x[0], y[0]), "d")  # noqa: E731
        return jax.shard_map(
            body, mesh=jax.sharding.Mesh(np.array(w.devices), ("d",)), in_specs=ROWS[1:], out_specs=P(), check_vma=vma
        )(x, y)

    return jax.jit(jax.grad(total))(w.params, w.x, w.y), ()


@in_both_modes(
    "grad outside, of what enters by rows", raises={False: "GradientError"}, reference="nothing", right_on_global=True
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
    raises={False: "GradientError"},
    reference="nothing",
    right_on_global=True,
)
def _(w: World, vma: bool) -> Outcome:
    step = w.spmd(lambda p, x, y: w.op.psum(loss(p, x[0], y[0]), "d"), check_vma=vma)
    return jax.grad(step)(w.params, w.x, w.y), ()


# --- through sums of activations


@in_both_modes("d/dv sum(v * psum(v))")
def _(w: World, vma: bool) -> Outcome:
    cast = on_each(w, vma)
    body = lambda x: jax.grad(lambda v: jnp.sum(v * cast(w.op.psum(v, "d"))))(x)  # noqa: E731
    return (), w.spmd(body, P("d"), P("d"), vma)(w.x)


@case("d/dv sum(v * psum(v)), by JAX's implicit cast")
def _(w: World) -> Outcome:
    body = lambda x: jax.grad(lambda v: jnp.sum(v * w.op.psum(v, "d")))(x)  # noqa: E731
    return (), w.spmd(body, P("d"), P("d"))(w.x)


@case("d/dv sum(v * pvary(psum(v))) without types", raises="GradientError", reference="nothing")
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


# --- higher and forward derivatives


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


# --- several axes


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


# --- vmap and pmap with a declared name


def _row_wise(w: World) -> Callable[[Any], Any]:
    return lambda v: v * w.op.psum(v, "d")


@case("vmap over a declared name, grad inside", local_only=True)
def _(w: World) -> Outcome:
    return (), jax.jit(jax.vmap(jax.grad(lambda v: jnp.sum(_row_wise(w)(v))), axis_name="d"))(w.x)


@case("vmap over a declared name, grad outside", local_only=True, raises="GradientError")
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
    raises="GradientError",
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


@case("pmap, grad of cast parameters outside", local_only=True, reference="nothing", raises="GradientError")
def _(w: World) -> Outcome:
    body = lambda p, x, y: w.op.psum(loss(w.op.pvary(p, "d"), x, y), "d")  # noqa: E731
    mapped = jax.pmap(body, axis_name="d", in_axes=(None, 0, 0), out_axes=None, devices=w.devices)
    return jax.grad(mapped)(w.params, w.x, w.y), ()


# --- siblings of the sum


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
