"""A host's GPUs add up among themselves, so each exchanges only a slice with the host (docs/internals/accelerators.md).

`scatter` has each device add up one slice of the elements of all; `gather` gives all of them the sums of all slices.
Both are ordinary operations of XLA. Between them stands the sum over the hosts, of one slice for each device.

The bits are those of xla_ffi/host/numbers/host_elements.h, where the host adds up its devices' elements itself.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_passing._compat import jax_collectives, named_axes
from jax_passing.collective.axes import Axes

WORTH_BYTES = 2 << 20
"""How much a GPU must be spared on its link to the host, both ways together: at 25 to 50 GB/s (PCIe 4 and 5) it takes
40 to 80 us, about what the two collectives are expected to take that spare it (NCCL: 20 to 30 us each at least)."""

MOST_BYTES = 64 << 20
"""How much device memory it may take beyond the leaves. `scatter` takes most: the leaves end to end, as much from all
devices, a slice (docs/internals/accelerators.md)."""


class Slices(NamedTuple):
    """How the elements of a sum are spread over the devices of a host.

    Attributes:
      axes: of the sum, along which the members of a group are.
      members: of each process, where the mesh spans several; in the order of their slices.
      slice_count: one for each of this host's members.
      numbers: int64[device], which slice each device of the mesh has.
      elements: in a slice; a complex number is two. The last slice is filled up.
      dtype: of the leaves, or of the parts of complex ones.
      op: how they are added up: "sum" or "max".
    """

    axes: Axes
    members: list[list[int]] | None
    slice_count: int
    numbers: np.ndarray
    elements: int
    dtype: np.dtype[Any]
    op: str

    @property
    def wide(self) -> np.dtype[Any]:
        """The type of added elements: 16-bit floats aren't rounded before they are summed over the hosts."""
        return np.dtype(np.float32) if self.half else self.dtype

    @property
    def half(self) -> bool:
        """Tells whether the leaves are 16-bit floats."""
        return self.dtype.name in ("float16", "bfloat16")

    @property
    def aval(self) -> Any:
        """The type of a slice."""
        return jax.core.ShapedArray((self.elements,), self.wide)


def slices(
    axes: Axes,
    local_member_count: int,
    processes: np.ndarray,
    groups: np.ndarray,
    members: np.ndarray,
    elements: int,
    dtype: np.dtype[Any],
    op: str,
) -> Slices | None:
    """Returns how the elements are spread; None if the sum had better be left to the host.

    Args:
      axes, op: of the sum.
      local_member_count: how many of this host's devices add up, each for itself.
      processes, groups, members: int[device], of the devices of the mesh.
      elements: of the leaves of one device.
      dtype: theirs.
    """
    rows = np.zeros((groups.max() + 1, members.max() + 1), np.int64)  # process of (group, member)
    rows[groups, members] = processes
    parts = [np.flatnonzero(rows[0] == process).tolist() for process in dict.fromkeys(rows[0].tolist())]
    if (rows != rows[0]).any() or {len(part) for part in parts} != {local_member_count}:
        return None  # XLA's groups of members are the same everywhere, and of one size
    numbers = {member: number for part in parts for number, member in enumerate(part)}
    found = Slices(
        axes,
        parts if len(parts) > 1 else None,
        local_member_count,
        np.array([numbers[member] for member in members.tolist()], np.int64),
        -(-elements // local_member_count),
        dtype,
        op,
    )
    whole, slice_ = elements * dtype.itemsize, found.elements * found.wide.itemsize
    return found if 2 * (whole - slice_) >= WORTH_BYTES and 2 * whole + slice_ <= MOST_BYTES else None


def scatter(ctx: mlir.LoweringRuleContext, of: Slices, avals: Sequence[Any], leaves: Sequence[Any]) -> Any:
    """Lowers this device's slice of the leaves' elements, added up over this host's devices."""

    def add_up(*leaves: jax.Array) -> jax.Array:
        flat = lax.concatenate([_elements(leaf, of) for leaf in leaves], 0)
        filled = lax.pad(flat, np.zeros((), flat.dtype)[()], [(0, of.slice_count * of.elements - flat.size, 0)])
        # All rows come out of it, this device's own, too. So no addition is joined with the operations that made a
        # leaf: neither with a product, whose rounding would be left out, nor with a rounding to 16 bits.
        rows = jax_collectives.all_to_all(
            lax.reshape(filled, (of.slice_count, of.elements)), of.axes, 0, 0, axis_index_groups=of.members, tiled=True
        )
        add = {"sum": lax.add, "max": lax.max}[of.op]
        # One addition after the other, in the order of the members: XLA doesn't regroup those of floats.
        return functools.reduce(
            add, [_widened(lax.index_in_dim(rows, i, keepdims=False), of) for i in range(of.slice_count)]
        )

    (slice_,) = _lower(ctx, lambda *leaves: [add_up(*leaves)], avals, [of.aval], leaves)
    return slice_


def gather(ctx: mlir.LoweringRuleContext, of: Slices, avals: Sequence[Any], slice_: Any) -> list[Any]:
    """Lowers leaves of these types, whose elements stand in the slices of this host's devices."""

    def cut(slice_: jax.Array) -> list[jax.Array]:
        if of.half:  # the host left them in the low halves, as they are
            slice_ = lax.convert_element_type(lax.bitcast_convert_type(slice_, np.uint32), np.uint16)
        flat = jax_collectives.all_gather(slice_, of.axes, axis_index_groups=of.members, tiled=True)
        leaves, first = [], 0
        for aval in avals:
            size = aval.size * aval.dtype.itemsize // of.dtype.itemsize
            leaves.append(_leaf(lax.slice(flat, (first,), (first + size,)), aval, of))
            first += size
        return leaves

    return _lower(ctx, cut, [of.aval], avals, [slice_])


def _elements(leaf: jax.Array, of: Slices) -> jax.Array:
    """Returns the leaf in one dimension; for 16-bit floats their bits, of which XLA makes no others."""
    if np.issubdtype(leaf.dtype, np.complexfloating):
        parts = [lax.expand_dims(part, (leaf.ndim,)) for part in (lax.real(leaf), lax.imag(leaf))]
        leaf = lax.concatenate(parts, leaf.ndim)
    if of.half:
        leaf = lax.bitcast_convert_type(leaf, np.uint16)
    return lax.reshape(leaf, (leaf.size,))


def _widened(elements: jax.Array, of: Slices) -> jax.Array:
    return lax.convert_element_type(lax.bitcast_convert_type(elements, of.dtype), of.wide) if of.half else elements


def _leaf(elements: jax.Array, aval: Any, of: Slices) -> jax.Array:
    """Returns the leaf of this type with these elements."""
    if np.issubdtype(aval.dtype, np.complexfloating):
        parts = lax.reshape(elements, (aval.size, 2))
        elements = lax.complex(*(lax.index_in_dim(parts, i, axis=1, keepdims=False) for i in (0, 1)))
    if of.half:
        elements = lax.bitcast_convert_type(elements, of.dtype)
    return lax.reshape(elements, aval.shape)


def _lower(
    ctx: mlir.LoweringRuleContext,
    f: Callable[..., list[jax.Array]],
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    operands: Sequence[Any],
) -> list[Any]:
    plain = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in avals_in]
    own = ctx.replace(primitive=None, avals_in=plain, avals_out=avals_out)
    with named_axes.unchecked():  # the types of what is lowered were checked when it was traced
        return list(mlir.lower_fun(f, multiple_results=True)(own, *operands))
