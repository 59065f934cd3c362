"""The table of derivatives through sums, and the world in which a case runs."""

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
    """A program whose gradients are known is one case.

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
