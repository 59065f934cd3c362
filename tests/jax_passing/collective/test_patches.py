"""When JAX is changed, and what of it; and docs/internals/patches.md, which has the table of changes.

`python tests/jax_passing/collective/test_patches.py` writes the page's table anew.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jax._src import core, pjit, shard_map
from jax._src.interpreters import ad
from jax._src.lax import parallel
from jax._src.lib import version as jaxlib_version

import jax_passing
from jax_passing._compat import patches

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "patches.md"

# It looks at JAX itself, not at what the table says.
LOOK = """
import inspect, json
import jax
from jax._src import core, dispatch, monitoring, source_info_util, xla_bridge
from jax._src.interpreters import ad, batching, mlir
from jax._src.lax import parallel

RULES = {
    "lowering": mlir._lowerings,
    "lowering on CPU": mlir._platform_specific_lowerings["cpu"],
    "jvp": ad.primitive_jvps,
    "transpose": ad.primitive_transposes,
    "fancy transpose": getattr(ad, "fancy_transposes", {}),
    "batching": batching.fancy_primitive_batchers,
}
SETS = {
    "uncacheable": mlir._uncacheable_primitives,
    "needs devices": dispatch.prim_requires_devices_during_lowering,
}
PRIMITIVES = {primitive for rules in RULES.values() for primitive in rules}
PRIMITIVES |= {each for each in vars(parallel).values() if isinstance(each, core.Primitive)}
FUNCTIONS = {name: each for name, each in vars(jax.lax).items() if inspect.isfunction(each)}

def look():
    found = {("code", name): function.__code__ for name, function in FUNCTIONS.items()}
    for primitive in PRIMITIVES:
        for kind, rules in RULES.items():
            found[kind, primitive] = getattr(rules.get(primitive), "rule", rules.get(primitive))
        for kind, primitives in SETS.items():
            found[kind, primitive] = primitive in primitives
        found["bind", primitive] = primitive.bind_with_trace
    found["call", "Compiled"] = jax.stages.Compiled.__call__
    found["files", "ours"] = [path for path in source_info_util._exclude_paths if "jax_passing" in path]
    found["listeners", "ours"] = [
        each for each in monitoring.get_event_duration_listeners() if each.__module__.startswith("jax_passing")
    ]
    return found

def report():
    now = look()
    print(json.dumps([f"{kind} {name}" for (kind, name), value in before.items() if now[kind, name] != value]))

before = look()
import jax_passing
for name in jax_passing.__all__:
    getattr(jax_passing, name)
report()
"""

INIT = """
jax_passing.init()
report()
"""

TRACE = """
jax.eval_shape(jax.vmap(lambda x: jax_passing.psum(x, "i"), axis_name="i"), jax.ShapeDtypeStruct((2,), "float32"))
assert not xla_bridge.backends_are_initialized()
report()
"""


def is_collective(primitive):
    """Tells whether it moves something, and is none that awaits what another one began."""
    return not primitive.name.endswith("_done") and primitive.name not in ("preduced", "vary_unreduced_cast_p")


CHANGED = {
    *(f"lowering {each}" for each in (pjit.jit_p, core.call_p, core.closed_call_p, "cond", "while")),
    *(f"lowering on CPU {each}reduce_scatter" for each in ("", "unreduced_") if jaxlib_version < (0, 12)),
    *(f"transpose {each}" for each in ("psum_invariant", "pvary")),
    f"{'fancy ' if shard_map.shard_map_p in getattr(ad, 'fancy_transposes', {}) else ''}transpose shard_map",
    *(f"bind {each}" for each in vars(parallel).values() if isinstance(each, core.Primitive) and is_collective(each)),
    *(f"uncacheable {each}" for each in ("cond", "custom_jvp_call", "custom_linear_solve", "custom_vmap_call")),
    *(f"uncacheable {each}" for each in ("remat2", "scan", "shard_map", "while")),
    "call Compiled",
    "files ours",
    "listeners ours",
}


@pytest.mark.parametrize("begin", [INIT, TRACE + INIT], ids=["init", "trace"])
def test_jax_is_changed_by_a_session_or_the_first_trace_and_not_by_the_import(begin):
    ended = subprocess.run([sys.executable, "-c", LOOK + begin], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    imported, *begun = (set(json.loads(line)) for line in ended.stdout.splitlines())
    assert imported == set()
    for changed in begun:
        assert changed - {f"uncacheable {core.call_p}"} == CHANGED  # newer versions cache no calls by themselves


HEADING = "| What is changed | Why | When it can go | What replaces it |\n|---|---|---|---|\n"


def page():
    """Returns the page with the table as it should be."""
    assert jax_passing.psum  # so all rooms have said what replaces JAX's own
    before, _, behind = PAGE.read_text().partition(HEADING)
    rows = [row(patch.what, patch.why, patch.until, home(patch)) for patch in patches.TABLE]
    return before + HEADING + "".join(rows) + behind[behind.index("\n\n") + 1 :]


def row(*cells):
    return f"| {' | '.join(cells)} |\n"


def home(patch):
    """Names the file whose function replaces JAX's own."""
    assert patch.ours is not None, f"no room says what replaces {patch.what}"
    module = getattr(patch.ours, "__module__", patches.__name__)
    return f"`{module.removeprefix('jax_passing.').replace('.', '/')}.py`"


def test_the_page_has_the_table():
    assert PAGE.read_text() == page(), "run `python tests/jax_passing/collective/test_patches.py`"


if __name__ == "__main__":
    PAGE.write_text(page())
