"""Many arrays' sums: in buckets, by the strategy that was asked for, behind the backward pass."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_passing._compat import jax_collectives, named_axes
from jax_passing.collective.axes import Extent, Span
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.primitives.buckets import Leaf, make_buckets
from jax_passing.collective.primitives.hold import all_ready, hold, ready
from jax_passing.collective.primitives.own_rows import passing_rows_p
from jax_passing.collective.primitives.passing_psum import (
    passing_psum_invariant_p,
    passing_psum_p,
    residuals_vary,
)
from jax_passing.config import RANKS_MAX_OF_WIRE, STRATEGIES, WIRES
from jax_passing.errors import ConfigError
from jax_passing.host import session
from jax_passing.predict.cluster import Cluster
from jax_passing.predict.constants import NARROW_PARTS, UNKNOWN_LINK_GBIT
from jax_passing.predict.sums import choose


def is_number(leaf: Any) -> bool:
    """Returns whether it is a Python number, which is the same on all devices. A scalar of numpy, such as np.float64,
    is an array, though some of these are subclasses of Python's."""
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)


def check_bucket_bytes(bucket_bytes: Any) -> int:
    """Raises ConfigError."""
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
        raise ConfigError(f"bucket_bytes={bucket_bytes!r}: expected a whole number of bytes, 1 or more.")
    return bucket_bytes


def check_strategy(strategy: str | None, along: Extent) -> str:
    """Returns the strategy of a call. Raises ConfigError if it is unknown, or can't sum over these axes."""
    default, alone = along.scope.strategy, along.scope.alone
    if strategy is None:
        strategy = default
    if strategy not in STRATEGIES:
        raise ConfigError(f"Unknown strategy {strategy!r}. Known are {', '.join(STRATEGIES)}.")
    if strategy == "native" and along.over_hosts and not alone:
        world_size = along.scope.world_size
        others = "other host" if world_size == 2 else "other hosts"
        raise ConfigError(
            "strategy='native' is jax.lax.psum, which sums only over the mesh: this one lies inside the process, and "
            f"the {others} would be left out. Make one mesh over all of them "
            "(jax.distributed.initialize, then a mesh of jax.devices()), or use strategy='passing'."
        )
    if strategy == "native" and along.scope.confidential and not along.local and not alone:
        raise ConfigError(
            "strategy='native' is jax.lax.psum, whose sums travel in the clear, and this session's are confidential: "
            "use strategy='passing'."
        )
    if strategy == "flat" and default != "flat" and not alone:
        raise ConfigError(
            "strategy='flat' gives each device a rank at the switch, and these join with the session: call "
            "jax_passing.init(strategy='flat') or set JAX_PASSING_STRATEGY=flat on every host. Single sums may then "
            "say strategy='passing'."
        )
    return strategy


def check_wire_dtype_name(wire_dtype: Any, function: str = "") -> None:
    """Raises ConfigError if there is no such wire dtype; None is the session's."""
    if wire_dtype is not None and wire_dtype not in WIRES:
        where = f"{function}: unknown" if function else "Unknown"
        raise ConfigError(f"{where} wire_dtype {wire_dtype!r}. Known are {', '.join(WIRES)}.")


def check_wire_dtype(wire_dtype: str | None, along: Extent, strategy: str) -> str:
    """Returns how floats travel in a call with this strategy. Raises ConfigError if it is unknown, or names a way that
    the strategy hasn't."""
    check_wire_dtype_name(wire_dtype)
    if wire_dtype is None:
        return along.scope.wire_dtype
    if wire_dtype != "full" and strategy == "native" and not along.local and not along.scope.alone:
        raise ConfigError(
            f"wire_dtype={wire_dtype!r} says how floats travel to the switch, but strategy 'native' is jax.lax.psum, "
            "which sends them itself: say strategy='passing' in this call, or leave out the wire_dtype."
        )
    return wire_dtype


def with_its_wire_dtype(site: Site, dtype: str, along: Extent) -> Site:
    """Returns the site of a bucket of one dtype. Raises ConfigError if its wire dtype can't carry a sum over all ranks;
    in an elastic session, where their number isn't known, the sum fails when it runs."""
    if along.over_hosts is None or site.wire_dtype == "full" or dtype not in NARROW_PARTS:
        return replace(site, wire_dtype="full")
    scope = along.scope
    ranks = (scope.world_size or 1) * (scope.device_ranks if site.strategy == "flat" else 1)
    if ranks > (most := RANKS_MAX_OF_WIRE[site.wire_dtype]):
        wider = [each for each in WIRES[1:] if RANKS_MAX_OF_WIRE[each] >= ranks]
        others = " or ".join(f"wire_dtype={each!r}" for each in ["full", *wider])
        raise ConfigError(
            f"wire_dtype={site.wire_dtype!r} can sum over {most} ranks at most, as the sum of their integers must fit "
            f"into {site.wire_dtype.removeprefix('int')} bits; this session has {ranks}. Use {others} for the sum at "
            f"{site.location}."
        )
    return site


def buckets_of(arrays: Sequence[Any], site: Site) -> list[list[int]]:
    """Groups the indices of the arrays, whose paths are `site.paths`, by the call that sums them."""
    sizes = [array.size * array.dtype.itemsize for array in arrays]
    leaves = [Leaf(x.dtype, size, path) for x, size, path in zip(arrays, sizes, site.paths, strict=True)]
    return make_buckets(leaves, site.bucket_bytes)


def summing(site: Site, along: Extent, op: str = "sum", *, residuals: bool = False) -> Site:
    """Returns the site as the primitive takes it: with what it goes over."""
    return replace(
        site,
        axes=along.axes,
        op=op,
        residuals=residuals,
        over_hosts=along.over_hosts,
        world_size=along.scope.world_size,
        device_ranks=along.scope.device_ranks if site.strategy == "flat" else 0,
    )


def bucketed_sum(
    arrays: Sequence[Any], along: Extent, site: Site, op: str = "sum", *, of_casts: bool = False
) -> list[Any]:
    """Returns the sum of each array over the extent; `site.paths` names them, in their order.

    `of_casts`: they are cotangents of what was cast from equal to varying. So the sums' own cotangents, in second
    derivatives, are cast again, also where types don't tell.
    """
    return _in_buckets(
        arrays, arrays, site, lambda _, given, bucket: _sum_bucket(given, along, bucket, op, of_casts, residuals=False)
    )[0]


def bucketed_sum_with_residuals(arrays: Sequence[Any], along: Extent, site: Site) -> tuple[list[Any], list[Any]]:
    """Returns the sums as `bucketed_sum` does, and the residual of each."""
    return _in_buckets(
        arrays,
        arrays,
        site,
        lambda _, given, bucket: _sum_bucket(given, along, bucket, "sum", of_casts=False, residuals=True),
    )


def bucketed_rows(arrays: Sequence[Any], wholes: Sequence[jax.core.ShapedArray], span: Span, site: Site) -> list[Any]:
    """Returns what devices get of a gather or scatter whose calls bring, or take, their own rows alone. The arrays
    would have the types `wholes` in a sum."""

    def move(members: Sequence[int], given: list[Any], bucket: Site) -> _Results:
        own = [wholes[i] for i in members]
        summed = summing(with_its_wire_dtype(bucket, own[0].dtype.name, span.along), span.along)
        return passing_rows_p.bind(*given, span=span, site=summed, wholes=tuple(own)), []

    return _in_buckets(arrays, wholes, site, move)[0]


_Results = tuple[Sequence[Any], Sequence[Any]]  # the sums, and residuals unless there are none


def _in_buckets(
    arrays: Sequence[Any],
    wholes: Sequence[Any],
    site: Site,
    carry: Callable[[Sequence[int], list[Any], Site], _Results],
) -> tuple[list[Any], list[Any]]:
    """Carries the arrays bucket by bucket, and returns all sums and residuals. `wholes`: their types in a sum. `carry`:
    (the arrays' indices, these arrays, the bucket's site) to the results."""
    buckets = buckets_of(wholes, site)
    given, sums, left = list(arrays), list(arrays), list(arrays)
    carried = [members for bucket in buckets if (members := [i for i in bucket if arrays[i].size])]
    tokens = _when_ready(given, carried) if len(carried) > 1 else []
    for number, members in enumerate(buckets):
        results = carry(members, [given[i] for i in members], replace(site.only(members), bucket=number))
        for kept, values in zip((sums, left), results, strict=True):
            for index, value in zip(members, values, strict=False):  # no residuals unless they are asked for
                kept[index] = value
    if tokens:
        _hold_behind_all(sums, carried, tokens)
    return sums, left


def _sum_bucket(operands: list[Any], along: Extent, site: Site, op: str, of_casts: bool, residuals: bool) -> _Results:
    if site.strategy == "auto":
        site = replace(site, strategy=_choice(along, operands, site.wire_dtype))
    if site.strategy == "native":
        results: Sequence[Any] = jax_collectives.psum(operands, along.axes)
    else:
        invariant = of_casts or (named_axes.check_vma() and bool(named_axes.must_vary(along.axes)))
        inexact = jnp.issubdtype(operands[0].dtype, jnp.inexact)
        site = with_its_wire_dtype(site, operands[0].dtype.name, along)
        site = summing(site, along, op, residuals=residuals and bool(inexact))
        results = (passing_psum_invariant_p if invariant else passing_psum_p).bind(*operands, site=site)
    count = len(operands)
    sums, left = results[:count], results[count:]
    return sums, nothing_lost(sums, along, site) if residuals and not left else left


def nothing_lost(sums: Sequence[Any], along: Extent, site: Site) -> list[Any]:
    """Returns the residuals of exact sums: zeros, of the type that residuals have."""
    zeros = [jnp.zeros_like(each) for each in sums]
    if not named_axes.check_vma():
        return zeros
    more = named_axes.must_vary(along.axes) if residuals_vary(summing(site, along)) else frozenset()
    return [named_axes.pvary(zero, more - named_axes.varying(jax.typeof(zero))) for zero in zeros]


def _choice(along: Extent, operands: list[Any], wire_dtype: str) -> str:
    """Returns what is fastest for a bucket. It depends on nothing that could differ between hosts."""
    current = session.current()
    world_size = along.scope.world_size or 1  # in an elastic session no mesh spans the processes
    links = None if current is None else current.links
    if links is None or along.over_hosts is not False or world_size == 1 or along.scope.confidential:
        return "passing"
    cluster = Cluster(
        world_size,
        max(1, along.mesh_size // world_size),
        links.host_gbit or UNKNOWN_LINK_GBIT,
        shards=0 if links.switch_gbit is None else links.switches,
        shard_link_gbit=links.switch_gbit,
    )
    elements = sum(operand.size for operand in operands)
    # Never flat: it sends what passing sends, once for each device.
    return choose(cluster, elements, ("passing", "native"), operands[0].dtype.name, wire_dtype)


def _when_ready(arrays: list[Any], buckets: list[list[int]]) -> list[Any]:
    """Returns the token of each bucket's last array, which is exchanged for what tells."""
    tokens = []
    for members in buckets:
        arrays[members[-1]], token = ready(arrays[members[-1]])
        tokens.append(token)
    return tokens


def _hold_behind_all(sums: list[Any], buckets: list[list[int]], tokens: list[Any]) -> None:
    """Makes all buckets' sums travel beside the backward pass: `hold` says how."""
    gate = all_ready(tokens)
    for members in buckets:
        for index, held in zip(members, hold([sums[i] for i in members], gate), strict=True):
            sums[index] = held
