"""`overlap` sums a loss and its gradients over all devices of all hosts, during the backward pass."""

import sys
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax

from jax_passing.collective.axes import device_count, extent
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import sum_of
from jax_passing.collective.pvary import pvary
from jax_passing.errors import UsageError

_Params = TypeVar("_Params")
_Loss = TypeVar("_Loss")
_Rest = ParamSpec("_Rest")


def overlap(
    loss_fn: Callable[Concatenate[_Params, _Rest], _Loss],
    axis_name: Any,
    *,
    has_aux: bool = False,
    strategy: str | None = None,
    wire_dtype: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> Callable[Concatenate[_Params, _Rest], tuple[_Loss, _Params]]:
    """Does what `jax.value_and_grad` does for a loss that each device computes from its own part of the batch.

        def step(params, x, y):                                  # under shard_map or pmap with the axis "d"
            loss, gradients = jax_passing.overlap(loss_fn, "d")(params, x, y)

    Gradients are summed in buckets inside of the backward pass, the last layers' first, as soon as all of a bucket are
    there: so they travel while those of the layers before are computed (Zhang et al., Poseidon, USENIX ATC 2017).

    Args:
      loss_fn: `loss_fn(params, *args)` returns a scalar, the mean of this device's part; or with `has_aux` a scalar and
        a pytree. Parameters are the same on all devices of all hosts: a pytree, or a module of `flax.nnx`. Where parts
        have different numbers of rows, the mean of these means isn't that of all rows (docs/train/collectives.md).
      axis_name: as for `psum`.
      has_aux: as for `jax.value_and_grad`.
      strategy: how the gradients are summed, as for `psum`.
      wire_dtype: how the gradients travel, as for `psum`. The loss is one number, and always travels "full".
      bucket_bytes: how many of them are summed together, as for `psum`.

    Returns:
      A function of the arguments of `loss_fn`. It returns the mean of the loss over all devices of all hosts, and its
      gradients with respect to the first argument: the same on all of them. Aux stays each device's own. For a module
      it returns what `nnx.value_and_grad` does: gradients with respect to its `nnx.Param`s, as an `nnx.State`; and what
      the loss changes in the module (statistics, counts of random numbers) is changed in it, each device's own.

    Raises as `psum` and `pvary` do, where that function is called. The first time that it runs in a session, it ends in
    ProgramMismatchError if devices or hosts hold parameters of different bits (`init(check_equal=...)`).
    """

    def value_and_grad(params: Any, /, *args: Any, **kwargs: Any) -> Any:
        nnx: Any = sys.modules.get("flax.nnx")  # if it isn't imported, nothing is a module
        count = device_count(extent(axis_name), "overlap")
        of_module = nnx is not None and isinstance(params, nnx.Module)

        def cast(tree: Any) -> Any:
            return pvary(tree, axis_name, strategy=strategy, wire_dtype=wire_dtype, bucket_bytes=bucket_bytes)

        def share(params: Any) -> tuple[Any, Any]:
            result: Any
            if of_module:
                given = jax.tree.map(lambda leaf: leaf, nnx.state(params, nnx.Param))  # a copy, with the arrays of now
                varying = cast(given)
                nnx.update(params, varying)
                result = loss_fn(params, *args, **kwargs)
                # As the caller has them, equal on all devices, unless the loss has assigned them.
                nnx.update(params, jax.tree.map(_unless_assigned, nnx.state(params, nnx.Param), varying, given))
            else:
                result = loss_fn(cast(params), *args, **kwargs)
            several = isinstance(result, tuple | list)
            if several != has_aux or (several and len(result) != 2):  # the division's error wouldn't name has_aux
                raise UsageError(
                    f"overlap: the loss function returns a {type(result).__name__}, and has_aux is {has_aux}. Let it "
                    "return a scalar, or with has_aux=True a pair of a scalar and a pytree."
                )
            loss, aux = result if has_aux else (result, None)
            return loss / count, aux

        transform = nnx.value_and_grad if of_module else jax.value_and_grad
        (loss, aux), gradients = transform(share, has_aux=True)(params)
        loss = sum_of(loss, axis_name, strategy, "full", DEFAULT_BUCKET_BYTES, "overlap")
        return ((loss, aux) if has_aux else loss), gradients

    return value_and_grad


def _unless_assigned(now: Any, put: Any, given: Any) -> Any:
    return given if now is put else now
