#!/usr/bin/env bash
# diffrax solves differential equations, and differentiates through the solution by a choice of adjoints. Under jit all
# of them give the same gradient, also for sharded arrays. In a shard_map that checks how values vary (its default),
# none gives any: TypeError, as the carry of a loop varies over the mesh only after the first step. With check_vma=False,
# and in pmap, DirectAdjoint and BacksolveAdjoint give the right gradient; the default adjoint, RecursiveCheckpointAdjoint,
# raises ValueError, though the same function under vmap with an axis name works. Seen with diffrax 0.7.2, equinox
# 0.13.8, jax 0.10.2 (for loops in shard_map see also https://github.com/patrick-kidger/diffrax/issues/765).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 diffrax==0.7.2 equinox==0.13.8
cat >"$folder/look.py" <<'PYTHON'
import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

mesh = jax.sharding.Mesh(jax.devices(), ("d",))
starts = jnp.arange(4.0) + 1
right = -10 * np.exp(-0.5)  # the derivative of the sum of starts * exp(-rate) at 0.5


def outcome(adjoint, way):
    def loss(rate, starts):
        term = diffrax.ODETerm(lambda t, y, rate: -rate * y)
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, starts, args=rate, adjoint=adjoint, max_steps=64
        )
        return jnp.sum(solution.ys)

    def gradient(starts):
        return jax.lax.psum(jax.grad(loss)(0.5, starts), "d")

    def mapped(check_vma):
        return jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=check_vma))(starts)

    try:
        match way:
            case "jit":
                rows = jax.device_put(starts, jax.sharding.NamedSharding(mesh, P("d")))
                found = jax.jit(jax.grad(loss))(0.5, rows)
            case "checked":
                found = mapped(True)
            case "unchecked":
                found = mapped(False)
            case "pmap":
                found = jax.pmap(gradient, axis_name="d")(starts.reshape(2, 2))[0]
            case "vmap":
                found = jax.vmap(gradient, axis_name="d")(starts.reshape(2, 2))[0]
    except (TypeError, ValueError) as error:
        return type(error).__name__
    return "right" if abs(found - right) < 1e-4 else "wrong"


for name in ("RecursiveCheckpointAdjoint", "DirectAdjoint", "BacksolveAdjoint"):
    ways = ("jit", "checked", "unchecked", "pmap", "vmap")
    print(name, *(f"{way}:{outcome(getattr(diffrax, name)(), way)}" for way in ways))
PYTHON
export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2
seen=$("$folder/venv/bin/python" "$folder/look.py")
echo "$seen"
[ "$seen" = "RecursiveCheckpointAdjoint jit:right checked:TypeError unchecked:ValueError pmap:ValueError vmap:right
DirectAdjoint jit:right checked:TypeError unchecked:right pmap:right vmap:right
BacksolveAdjoint jit:right checked:TypeError unchecked:right pmap:right vmap:right" ] || {
  echo "the behaviour has changed"
  exit 1
}
