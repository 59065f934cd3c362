"""`psum_start` starts a sum, `psum_done` waits for it: in between, and between two programs, the sum continues by
itself.

A handle stands for the sum. It goes through programs as any value does; its arrays are numbers by which this process
finds what it keeps for the sum (primitives/handles.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jax_collectives, named_axes
from jax_passing.collective.axes import Axes, Extent, as_axes, extent, require_session
from jax_passing.collective.naming.sites import Site, new_site, paths_of
from jax_passing.collective.primitives import handles
from jax_passing.collective.primitives.bucketed_sum import (
    check_bucket_bytes,
    check_strategy,
    check_wire_dtype,
    summing,
    with_its_wire_dtype,
)
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES, Leaf, make_buckets
from jax_passing.collective.primitives.handles import LeafType
from jax_passing.collective.primitives.hold import together
from jax_passing.collective.primitives.operands import SUPPORTED_DTYPES, check_dtype, summand
from jax_passing.errors import ConfigError, UsageError


class _Kind(NamedTuple):
    """Two handles of sums of like trees have this in common: the tree's structure, its leaves, and how they are
    summed."""

    treedef: Any
    types: tuple[LeafType, ...]
    axes: Axes
    strategy: str | None
    wire_dtype: str | None
    bucket_bytes: int

    @property
    def paths(self) -> tuple[str, ...]:
        return paths_of(jax.tree.unflatten(self.treedef, range(len(self.types))))

    def buckets(self) -> list[list[int]]:
        sizes = [int(np.prod(each.shape, dtype=np.int64)) * each.dtype.itemsize for each in self.types]
        leaves = [Leaf(t.dtype, size, path) for t, size, path in zip(self.types, sizes, self.paths, strict=True)]
        return make_buckets(leaves, self.bucket_bytes)


@dataclass(frozen=True)
class PsumHandle:
    """A handle stands for a sum that was started. `psum_start` and `no_sum` make it; it is a pytree.

    Its leaves are a float32 for each bucket of the sum. They are to be carried as they are, and mean nothing to other
    processes, or in other sessions.
    """

    _tokens: tuple[Any, ...]
    _kind: _Kind

    def __repr__(self) -> str:
        return f"<jax_passing.PsumHandle of {len(self._kind.types)} arrays over {', '.join(map(str, self._kind.axes))}>"


def _flatten(handle: PsumHandle) -> tuple[tuple[Any, ...], _Kind]:
    return handle._tokens, handle._kind


jax.tree_util.register_pytree_node(PsumHandle, _flatten, lambda kind, tokens: PsumHandle(tuple(tokens), kind))


def psum_start(
    tree: Any,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> PsumHandle:
    """Starts the sum of each array of `tree`, as `psum` sums them, and returns without waiting for other hosts.

    The sum goes on while the program does other things, and after it has ended: the handle may be returned from a
    jitted step and given to a later one, carried by a loop, or stored in an optimizer's state. `psum_done(handle)`
    waits for the sums. Each handle is finished once; at most 64 of one call can be unfinished, as each keeps a copy of
    its arrays for every device of the host. All hosts start the same sums in the same order, as with `psum`; they may
    finish them in any order. The gradient is that of `psum`, and its sums are started and finished apart too.

    Args:
      tree: as for `psum`; Python numbers are arrays here.
      axis_name: as for `psum`.
      strategy: as for `psum`; not "native", as `jax.lax.psum` can't be started apart.
      wire_dtype: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns: A handle: a pytree of float32 scalars, the same on all devices (for jax.shard_map, P()).

    Raises:
      ConfigError: the strategy is "native"; and as `psum`.
      UsageError: when it runs, too many handles of this call aren't finished; or as `psum`.
      UnvaryingInputError, NameError: as `psum`.
    """
    check_bucket_bytes(bucket_bytes)
    along = extent(axis_name)
    wanted = _check_strategy(strategy, along)
    leaves, treedef = jax.tree.flatten(tree)
    paths = paths_of(tree)
    in_host = _in_host(along)
    arrays = (
        _sums_in_host(leaves, paths, along)
        if in_host
        else [summand(leaf, along.axes, "psum_start", path) for leaf, path in zip(leaves, paths, strict=True)]
    )
    summed_over = _summed_over(along.axes)
    types = tuple(LeafType.of(jax.typeof(array), summed_over) for array in arrays)
    kind = _Kind(treedef, types, along.axes, strategy, wire_dtype, bucket_bytes)
    carried = check_wire_dtype(wire_dtype, along, wanted)
    site = new_site(along.scope.stream, wanted, bucket_bytes, paths, function="psum_start", wire_dtype=carried)
    tokens = []
    for members, bucket in _sites(kind, site, along):
        given = [arrays[i] for i in members]
        if in_host:
            tokens.append(handles.keep(given, bucket))
        else:
            tokens.append(handles.start(given, bucket, invariant=bool(_summed_over(along.axes))))
    return PsumHandle(tuple(tokens), kind)


def psum_done(handle: PsumHandle, *, after: Any = ()) -> Any:
    """Waits for the sums that `psum_start` started, and returns them.

    Args:
      handle: what `psum_start` or `no_sum` returned; it can't be used again.
      after: arrays, in a tree, that are computed first. In one program the compiler decides when to wait, unless this
        says it: `psum_done(handle, after=grads)` waits behind the backward pass.

    Returns: What `psum` of the tree would have returned, bit for bit, unless a `wire_dtype` rounds at random; zeros for
      a handle of `no_sum`.

    Raises:
      UsageError: this is no handle. When it runs: the handle was used before, belongs to a session that is over, or
        something was calculated with it. Or as `psum`.
      NameError: as `psum`.
    """
    if not isinstance(handle, PsumHandle):
        raise UsageError(
            f"psum_done takes what jax_passing.psum_start or no_sum returned, not {type(handle).__name__}: give it the "
            "handle itself, not its arrays or a tree of handles (jax.tree.map over those)."
        )
    kind = handle._kind
    tokens = jax.tree.leaves(handle)  # in the state of an nnx.Optimizer each is in a Variable
    if not all(jnp.shape(token) == () and jnp.result_type(token) == np.float32 for token in tokens):
        found = ", ".join(sorted({str(jax.typeof(jnp.asarray(token))) for token in tokens}))
        raise UsageError(
            f"psum_done: this handle holds {found} instead of float32[]: something was calculated with it, such as a "
            "cast of an optimizer's state, or several were stacked. Carry and store handles as they are."
        )
    along = extent(kind.axes)
    if along.axes:
        require_session(along, "psum_done")
    wanted = _check_strategy(kind.strategy, along)
    carried = check_wire_dtype(kind.wire_dtype, along, wanted)
    site = new_site(
        along.scope.stream, wanted, kind.bucket_bytes, kind.paths, function="psum_start", wire_dtype=carried
    )
    summed_back = not _in_host(along) and not _summed_over(along.axes)
    sums: list[Any] = [None] * len(kind.types)
    others = [jnp.asarray(leaf) for leaf in jax.tree.leaves(after)]
    for token, (members, bucket) in zip(tokens, _sites(kind, site, along), strict=True):
        types = [_type_here(kind.types[i]) for i in members]
        taken = handles.take(token, types, bucket, summed_back=summed_back, after=others)
        for i, each in zip(members, taken, strict=True):
            sums[i] = each
    if len(tokens) > 1:
        sums = together(sums)  # so whoever uses one of them finishes all, and no bucket stays unfinished
    return jax.tree.unflatten(kind.treedef, sums)


def no_sum(
    tree: Any,
    axis_name: Any,
    *,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> PsumHandle:
    """Returns the handle of no sum, for the place of a handle before there is one: `psum_done` of it gives zeros at
    once, on each host by itself, as often as it is asked.

    Args:
      tree: arrays, or whatever has their shapes and dtypes (jax.ShapeDtypeStruct), as will be given to `psum_start`.
      axis_name: as will be given to `psum_start`, and so are the others. The axis needn't be bound here.
      strategy: as there.
      wire_dtype: as there.
      bucket_bytes: as there.

    Returns: A handle with the structure of `psum_start(tree, axis_name)`.

    Raises:
      UsageError, ConfigError: as `psum_start`.
    """
    check_bucket_bytes(bucket_bytes)
    leaves, treedef = jax.tree.flatten(tree)
    axes = as_axes(axis_name)
    summed_over = _summed_over(axes)
    types = []
    for leaf, path in zip(leaves, paths_of(tree), strict=True):
        aval = _type_of(leaf)
        check_dtype(f"psum_start of {aval.dtype.name}", aval.dtype, path, SUPPORTED_DTYPES)
        dtype = np.dtype(np.int32) if aval.dtype == np.bool_ else aval.dtype
        types.append(LeafType.of(aval, summed_over)._replace(dtype=dtype))
    kind = _Kind(treedef, tuple(types), axes, strategy, wire_dtype, bucket_bytes)
    return PsumHandle(tuple(jnp.zeros((), np.float32) for _ in kind.buckets()), kind)


def _type_of(leaf: Any) -> Any:
    """Returns the type that JAX gives to a traced value, an array, a number, or whatever has a shape and a dtype."""
    if isinstance(leaf, jax.core.Tracer):
        return jax.typeof(leaf)
    if hasattr(leaf, "shape"):
        return jax.core.ShapedArray(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
    return jax.typeof(jnp.asarray(leaf))


def _check_strategy(strategy: str | None, along: Extent) -> str:
    wanted = check_strategy(strategy, along)
    if wanted == "native" and not _in_host(along):
        raise ConfigError(
            "strategy='native' is jax.lax.psum, which can't be started in one place and finished in another: say "
            "psum_start(..., strategy='passing')."
        )
    return "passing" if wanted == "auto" else wanted


def _in_host(along: Extent) -> bool:
    """Tells whether JAX carries out the sum, within this process."""
    return not along.axes or (along.local and along.suits_jax)


def _summed_over(axes: Axes) -> frozenset[Any]:
    """Returns those of `axes` over which the types of values say what varies."""
    return named_axes.must_vary(axes) if named_axes.check_vma() else frozenset()


def _sums_in_host(leaves: Sequence[Any], paths: Sequence[str], along: Extent) -> list[Any]:
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for array, path in zip(arrays, paths, strict=True):
        check_dtype(f"psum_start of {array.dtype.name}", array.dtype, path, SUPPORTED_DTYPES)
    arrays = [array.astype(np.int32) if array.dtype == np.bool_ else array for array in arrays]
    return jax_collectives.psum(arrays, along.axes) if along.axes else arrays


def _sites(kind: _Kind, site: Site, along: Extent) -> list[tuple[list[int], Site]]:
    """Returns the leaves, and the site, of each bucket."""
    sites = []
    for number, members in enumerate(kind.buckets()):
        bucket = replace(site.only(members), bucket=number)
        if not _in_host(along):
            bucket = summing(with_its_wire_dtype(bucket, kind.types[members[0]].dtype.name, along), along)
        sites.append((members, bucket))
    return sites


def _type_here(leaf: LeafType) -> LeafType:
    """Returns the type of a leaf in the code that is being traced, where types may not say what varies."""
    return leaf if named_axes.check_vma() else leaf._replace(varying=())
