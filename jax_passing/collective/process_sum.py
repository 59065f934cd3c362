"""`process_sum`, `barrier` and `on_rank_zero` work between hosts, outside of jitted programs."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import numpy as np

from jax_passing._compat import jaxprs
from jax_passing.collective.axes import Extent
from jax_passing.collective.naming.sites import Site, new_site, paths_of, type_text
from jax_passing.collective.primitives.bucketed_sum import bucketed_sum, buckets_of
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.primitives.operands import check_dtype, without_float0
from jax_passing.errors import RankZeroError, UsageError, translate
from jax_passing.host import inside, session
from jax_passing.host import scope as scopes

_TEXT_BYTES = 1024

_T = TypeVar("_T")


@overload
def process_sum(tree: jax.Array) -> np.ndarray: ...
@overload
def process_sum(tree: _T) -> _T: ...
def process_sum(tree: Any) -> Any:
    """Sums numbers and numpy arrays over the hosts, each of which gives its own once. Not for traced code.

    Args:
      tree: numpy arrays of the dtypes of `psum`, or Python numbers, which count as numpy's 64-bit types. Paths, shapes
        and dtypes must be the same on all hosts. jax.Arrays are fetched first.

    Returns:
      A tree of the same structure of numpy arrays (numbers for numbers), the same on all hosts; of the same shapes and
      dtypes (int32 for bool). Integers are exact modulo their size, floats are added up as by `psum`.

    Raises:
      UsageError: called where JAX traces (`psum` is for that); or a leaf has another dtype; or there is no session; or
        another thread called `init`.
      HostLostError: another host is gone.
      DeadlineExceededError: other hosts didn't come in time.
      PassingError: the session failed in another way.
    """
    summed, whole = without_float0(tree)
    leaves, treedef = jax.tree.flatten(summed)
    _check_outside("process_sum", leaves)
    scope = scopes.required("process_sum")
    if not leaves:
        return tree
    paths = paths_of(summed)
    arrays = [_as_array(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
    types = [type_text(array) for array in arrays]
    site = new_site(scope.stream, "passing", DEFAULT_BUCKET_BYTES, paths, function="process_sum", types=types)
    sums = _over_hosts(arrays, scope, site)
    results = [
        each if isinstance(leaf, np.ndarray | jax.Array) else each[()] for each, leaf in zip(sums, leaves, strict=True)
    ]
    return whole(jax.tree.unflatten(treedef, results))


def barrier() -> None:
    """Returns once all hosts have called it. What they dispatched before may still run: JAX runs ahead of Python.

    Raises as `process_sum` does.
    """
    _check_outside("barrier", [])
    scope = scopes.required("barrier")
    site = new_site(scope.stream, "passing", DEFAULT_BUCKET_BYTES, [""], function="barrier")
    _over_hosts([np.ones((), np.int32)], scope, site)


def on_rank_zero(function: Callable[[], object]) -> None:
    """Calls `function` on rank 0, while the other hosts wait. Once this returns, on any host, `function` is done.

    All hosts call it, outside of traced code. They wait for at most `deadline_s`: give `init` one that is longer than
    `function` takes.

    Args:
      function: takes nothing. What it returns is dropped, as only rank 0 would have it. It may raise any Exception, but
        not sum over the hosts, which wait for it.

    Raises:
      RankZeroError: `function` raised, which all hosts hear. They may go on. On rank 0 the cause is what it raised.
      UsageError, HostLostError, DeadlineExceededError, PassingError: as `process_sum` does.
    """
    _check_outside("on_rank_zero", [])
    scopes.required("on_rank_zero")
    current, cause, text = session.current(), None, b""
    if current is not None and current.rank == 0:
        try:
            function()
        except Exception as error:
            cause, text = error, _text_of(error)
    # The others add zeros.
    text = process_sum(np.frombuffer(text.ljust(_TEXT_BYTES, b"\0"), np.uint8)).tobytes().rstrip(b"\0")
    if text:
        raise RankZeroError(f"What rank 0 did for all hosts failed there: {text.decode(errors='replace')}") from cause


def _text_of(error: Exception) -> bytes:
    """Never raises, as the other hosts wait; and is never empty, as they take that for success."""
    try:
        said = str(error)
    except Exception:
        said = "(its text can't be had)"
    return f"{type(error).__name__}: {said}".encode(errors="replace")[:_TEXT_BYTES]


def _check_outside(function: str, leaves: list[Any]) -> None:
    if jaxprs.tracing() or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise UsageError(
            f"jax_passing.{function} is for values that are known, and here JAX traces (jit, shard_map, vmap, grad): "
            "it would run once, while tracing. Call it outside; inside use jax_passing.psum, which is a barrier, too, "
            "for what needs its result."
        )


def _as_array(leaf: Any, path: str) -> np.ndarray:
    array = np.asarray(leaf)
    check_dtype(f"process_sum of {type(leaf).__name__} of dtype {array.dtype.name}", array.dtype, path)
    return array.astype(np.int32) if array.dtype == np.bool_ else array


def _over_hosts(arrays: list[np.ndarray], scope: scopes.Scope, site: Site) -> list[np.ndarray]:
    """Sums by a program on one device, so that each host has one part in it."""
    device = min(jax.local_devices(backend="cpu"), key=lambda device: device.id)
    with jax.disable_jit(False), jax.enable_x64(True), jax.set_mesh(None), translate():
        operands = [jax.device_put(array, device) for array in arrays]
        inside.between_programs(sum(any(arrays[i].size for i in bucket) for bucket in buckets_of(arrays, site)))
        return [np.asarray(each) for each in _program(scope, site)(*operands)]


@functools.lru_cache(maxsize=1024)
def _program(scope: scopes.Scope, site: Site) -> Any:
    def process_sum(*arrays: Any) -> list[Any]:
        return bucketed_sum(arrays, Extent((), True, scope), site)

    process_sum.__name__ = site.function
    return jax.jit(process_sum)
