"""Sums are named alike on all hosts: docs/internals/identity.md."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from weakref import WeakKeyDictionary

import jax

from jax_passing._compat import jaxprs, named_axes
from jax_passing.collective.naming.source_location import SourceLocation, here
from jax_passing.host import scope as scopes


@dataclass(frozen=True)
class Site:
    """One call of the primitive, as the program says it: the primitive's parameter.

    All of it tells sums apart on all hosts, but for the last seven, which hosts have in common.

    Attributes:
      location: where it is called.
      call: how many calls came from there before it, in the same trace.
      stream: the order of sums that it belongs to.
      strategy: how it is carried out.
      bucket_bytes: what the call said.
      paths: where its leaves are in their tree.
      bucket: which of the call's buckets.
      kind: how it came from the call: "j" for a tangent, "t" for a transpose, several letters for several steps.
      function: what was called, and what must be the same on all hosts: "broadcast from 2".
      types: those of its leaves, where what travels has others.
      vmapped: size of the axis of vmap that continues over the hosts; 0 without one.
      wire_dtype: how floats travel to the switch; "full" for other dtypes.
      axes: names of those that it goes over, with those below from here on: bucketed_sum.py fills them in.
      op: "sum" or "max".
      residuals: behind the sums, the leaves' residuals are returned (psum.py).
      over_hosts: the sum goes over the hosts, which the mesh doesn't know; None: traced before `init`.
      world_size: hosts of the session; None: any number, as it is elastic.
      device_ranks: devices of each host that are ranks of their own at the switch; 0: each host is one.
      moves, rows_inside, root: what of the leaves a host gives and needs (sum_spec.py).
    """

    location: SourceLocation
    call: int
    stream: str
    strategy: str
    bucket_bytes: int
    paths: tuple[str, ...] = ()
    bucket: int = 0
    kind: str = ""
    function: str = "psum"
    types: tuple[str, ...] = ()
    vmapped: int = 0
    wire_dtype: str = "full"
    axes: tuple[named_axes.Axis, ...] = ()
    op: str = "sum"
    residuals: bool = False
    over_hosts: bool | None = None
    world_size: int | None = None
    device_ranks: int = 0
    moves: str = "all"
    rows_inside: int = 0
    root: int = 0

    def only(self, indices: Sequence[int], kind: str = "") -> "Site":
        """Returns the site of some of the leaves, a step further from the call."""
        paths = tuple(self.paths[i] for i in indices)
        types = tuple(self.types[i] for i in indices) if self.types else ()
        return replace(self, paths=paths, types=types, kind=self.kind + kind)

    @property
    def in_order(self) -> bool:
        """Tells whether calls that are alike come in the order of the program."""
        return not self.kind and not self.location.transposing and _same_loops()

    @property
    def call_of_all_buckets(self) -> object:
        """Returns the same for all buckets of one call."""
        return self.location, self.call, self.kind, self.function, self.stream

    def identity(self, *, name_stack: str, calls: Sequence[SourceLocation], leaves: Sequence[str]) -> dict[str, Any]:
        """Returns what tells sums apart, for canonical JSON.

        Args:
          name_stack: JAX's: transforms, modules of Flax, `jax.named_scope`.
          calls: those of the jitted functions around the call, the innermost first.
          leaves: their types, "float32[3,4]".
        """
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_NAMED}
        return own | {
            "axes": [str(axis) for axis in self.axes],
            "calls": [[*location.frames, location.further] for location in calls],
            "further": self.location.further,
            "leaves": [list(leaf) for leaf in zip(self.paths, leaves, strict=True)],
            "place": self.location.frames,
            "name_stack": name_stack,
        }


# The identity says these fields of a site in other words, or leaves them out as all hosts have the same.
_NOT_NAMED = (
    "location", "paths", "residuals", "over_hosts", "world_size", "device_ranks", "moves", "rows_inside", "root",
)  # fmt: skip


def canonical(identity: dict[str, Any]) -> str:
    return json.dumps(identity, sort_keys=True, separators=(",", ":"))


_counts: WeakKeyDictionary[Any, dict[SourceLocation, int]] = WeakKeyDictionary()  # of each trace under way
_counts_lock = threading.Lock()


def _same_loops() -> bool:
    scope = scopes.of_thread()
    return scope is None or scope.same_hashes


def new_site(
    stream: str,
    strategy: str,
    bucket_bytes: int,
    paths: Sequence[str],
    location: SourceLocation | None = None,
    *,
    function: str = "psum",
    types: Sequence[str] = (),
    wire_dtype: str = "full",
) -> Site:
    """Returns the site of a call of this package, or of JAX at `location`.

    Calls from one location are counted in the order of the program, if that is sure to be the same on all hosts: a loop
    over a set of texts goes in another order in each process, unless PYTHONHASHSEED says otherwise. Those that JAX
    makes while it transposes aren't counted, as it makes up their order, which may depend on the program's other parts.
    """
    location = here() if location is None else location
    call = 0
    trace = None if location.transposing or not _same_loops() else jaxprs.current_trace()
    if trace is not None:  # else there may be no program: each line is one of its own
        with _counts_lock:
            counts = _counts.setdefault(trace, {})
            call = counts.get(location, 0)
            counts[location] = call + 1
    return Site(
        location,
        call,
        stream,
        strategy,
        bucket_bytes,
        tuple(paths),
        function=function,
        types=tuple(types),
        wire_dtype=wire_dtype,
    )


def paths_of(tree: Any) -> tuple[str, ...]:
    """Returns the path of each leaf: "['layer']['w']"; "" for a tree that is one leaf."""
    return tuple(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0])


def type_text(aval: Any) -> str:
    """Returns the text of an array's type, for identities and messages."""
    # Made of what can't differ between hosts: JAX's own text of a type lists sets in any order.
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"
