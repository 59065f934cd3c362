"""`sharded` gives each device its part of an optimizer's state, gradients and parameters."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.extend import core
from jax.interpreters import partial_eval
from jax.sharding import Mesh

from jax_passing.collective.all_gather import psum_scatter
from jax_passing.collective.known_equal import known_to_vary
from jax_passing.collective.naming.sites import paths_of
from jax_passing.collective.psum import pmean
from jax_passing.errors import ConfigError
from jax_passing.optax.arguments import not_in_multi_steps
from jax_passing.optax.by_part import ByPart, Dealt, Uniform
from jax_passing.optax.own_update import OwnUpdate
from jax_passing.optax.parts import (
    Dealer,
    Part,
    flattened,
    is_dealt,
    is_part,
    part_specs,
    shapes_of,
    specs_once_dealt,
    with_paths,
    within,
)
from jax_passing.partitioning.arrays import weak_shape_of


def sharded(
    inner: optax.GradientTransformation, axis_name: Any, mesh: Mesh | None = None
) -> optax.GradientTransformationExtraArgs:
    """Gives each device of all hosts its part of the work and of the state of an optimizer.

        optimizer = jax_passing.optax.sharded(optax.adamw(3e-4), "d", mesh)
        state = optimizer.init(params)                                  # a host has 1/H of it
        specs = jax_passing.optax.part_specs(state, "d")                # of the state, for shard_map

        def step(params, state, batch):
            own = jax.lax.pcast(params, "d", to="varying")
            updates, state = optimizer.update(jax.grad(loss)(own, batch), state, params)
            return optax.apply_updates(params, updates), state

    A device gets the mean of its part of the gradients by `psum_scatter`, carries out `inner` on its parts alone, and
    gets the others' updates by `all_gather` (Rajbhandari et al., ZeRO, SC 2020, stages 1 and 2). If `update` is given
    parameters that are dealt, it returns updates that are: then each device keeps its part of the parameters as well,
    and the next step gathers them, layer by layer beside the forward pass:

        def step(parts, state, batch):
            params = jax_passing.optax.gather(parts, "d")
            ...
            updates, state = optimizer.update(gradients, state, parts)
            return optax.apply_updates(parts, updates), state    # nothing else takes these updates

    **Which optimizers.** `inner` is traced for whole arrays, so paths, masks and shapes mean what they always do, and
    then carried out on parts. That is right for what works element by element, and for numbers made of all elements of
    arrays: `clip_by_global_norm`, `apply_if_finite`, the trust ratios of `lamb` and `lars`. An optimizer that mixes
    elements otherwise is refused by the name of its operation: `adafactor` with factors, `muon`, `lbfgs`.

    **Bits.** Given the means, an optimizer that works element by element computes the same operations as without this,
    on other lengths of arrays. So sgd has the same bits; where XLA rounds a function otherwise at the end of an array,
    others are off by that. A mean has the bits of `pmean` if the number of elements is a multiple of the number of
    devices; else zeros are added, which may move the limits of blocks (docs/internals/fixed_point.md). Numbers made of
    all elements are sums of devices' sums, and off by the rounding of these.

    Args:
      inner: an optimizer; what decides by gradients (clipping, `MultiSteps`) belongs in here.
      axis_name: as for `psum`.
      mesh: that of the step, if `init` is called outside of the axis.

    Returns: A transformation whose `update` takes each device's own gradients, within the axis, and extra arguments
      that are the same on all devices: the mean of the losses, as `value` of `polyak_sgd`. Its state has a `Part` for
      each array that is dealt, and lies as `part_specs` says.

    Raises:
      ConfigError: in `init`, outside of the axis without a mesh; in `update`, `inner` can't be sharded, the state is
        another one's, gradients are parts, or, under `check_vma=True`, an extra argument varies over the axis or
        `optax.MultiSteps` is around this; as `psum_scatter`, in elastic sessions outside of `jax_passing.fixed_size`.
      UsageError, UnvaryingInputError, NameError: as `psum_scatter` does.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> Any:
        shapes = shapes_of(params)

        def make(params: Any) -> Any:
            traced = _Traced(inner.init, params)
            by_part = ByPart(Dealer(axis_name, "sharded"), shapes)
            given = [_given(leaf, "the parameter" + path, by_part) for leaf, path in with_paths(params)]
            return traced.state(by_part, traced.results(by_part, given))

        specs = specs_once_dealt(_Traced(inner.init, params).shapes, shapes, axis_name)
        return within("sharded", make, axis_name, mesh, part_specs(params, axis_name), specs)(params)

    @not_in_multi_steps("sharded", sums_stay=False)
    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        by_part = ByPart(Dealer(axis_name, "sharded"), shapes_of(gradients))
        _check_parts((state, params), by_part)
        _check_arguments(gradients, extra, by_part.dealer)
        traced = _Traced(
            lambda gradients, state, params, extra: inner.update(gradients, state, params, **extra),
            gradients, state, params, extra,
        )  # fmt: skip
        means = _means(gradients, by_part, traced.used)
        arguments = [
            *means,
            *(_given(leaf, "the state" + path, by_part) for leaf, path in with_paths(state)),
            *(_given(leaf, "the parameter" + path, by_part) for leaf, path in with_paths(params)),
            *(_given(leaf, "the argument" + path, by_part) for leaf, path in with_paths(extra)),
        ]
        results = traced.results(by_part, arguments)
        count = len(jax.tree.leaves(traced.shapes[0]))
        updates = _updates(by_part, results[:count], traced.shapes[0], whole=not _has_parts(params))
        return updates, traced.state(by_part, results[count:], 1)

    return optax.GradientTransformationExtraArgs(init, update)


class _Traced:
    """Holds a function of trees, traced for whole arrays.

    Attributes:
      shapes: of its results.
      used: by argument, counted by leaves, whether any result depends on it.
    """

    def __init__(self, function: Any, *arguments: Any):
        leaves, treedef = flattened(arguments)
        traced = jax.make_jaxpr(lambda flat: function(*treedef.unflatten(flat)), return_shape=True)
        self._closed: core.ClosedJaxpr
        self.shapes: Any
        self._closed, self.shapes = traced([_whole_shape(leaf) for leaf in leaves])
        jaxpr = self._closed.jaxpr
        self.used: Sequence[bool] = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]

    def results(self, by_part: ByPart, arguments: Sequence[Any]) -> list[Any]:
        return by_part.run(self._closed.jaxpr, self._closed.consts, arguments)

    def state(self, by_part: ByPart, results: Sequence[Any], number: int | None = None) -> Any:
        """Returns the results as a state, with a Part for each array that is dealt: all, or the one of this number."""
        shapes = self.shapes if number is None else self.shapes[number]
        leaves = [
            by_part.as_state(value, aval, f"the state{path}")
            for value, (aval, path) in zip(results, with_paths(shapes), strict=True)
        ]
        avals, treedef = flattened(shapes)
        return treedef.unflatten([
            Part(leaf, tuple(aval.shape)) if is_dealt(aval, by_part.shapes) else leaf
            for leaf, aval in zip(leaves, avals, strict=True)
        ])  # fmt: skip


def _whole_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.array.dtype) if is_part(leaf) else weak_shape_of(leaf)


def _has_parts(tree: Any) -> bool:
    return any(map(is_part, flattened(tree)[0]))


def _given(leaf: Any, name: str, by_part: ByPart) -> Any:
    """Returns a leaf of the parameters or of the state in its form."""
    if is_part(leaf):
        return Dealt(leaf.array, name)
    leaf = jnp.asarray(leaf)
    return by_part.dealt(leaf, name) if is_dealt(leaf, by_part.shapes) else leaf


def _means(gradients: Any, by_part: ByPart, used: Sequence[bool]) -> list[Any]:
    """Returns the means of the gradients over all devices: this device's parts, or whole ones of those that aren't
    dealt. Gradients that aren't `used` (which goes on with other arguments), as those of frozen parameters, don't
    travel: zeros stand for them."""
    leaves, treedef = flattened(gradients)
    dealer, used = by_part.dealer, used[: len(leaves)]
    dealt = [is_dealt(jnp.asarray(leaf), by_part.shapes) for leaf in leaves]
    rows = [dealer.rows(leaf) if use and deal else None for leaf, use, deal in zip(leaves, used, dealt, strict=True)]
    rest = [leaf if use and not deal else None for leaf, use, deal in zip(leaves, used, dealt, strict=True)]
    sums = treedef.flatten_up_to(psum_scatter(treedef.unflatten(rows), dealer.axis_name))
    means = treedef.flatten_up_to(pmean(treedef.unflatten(rest), dealer.axis_name))
    paths = paths_of(gradients)
    return [
        Uniform(jnp.zeros((), jnp.result_type(leaf))) if not use
        else Dealt(total / dealer.count, "the gradient" + path) if deal
        else mean
        for leaf, use, deal, total, mean, path in zip(leaves, used, dealt, sums, means, paths, strict=True)
    ]  # fmt: skip


def _updates(by_part: ByPart, results: Sequence[Any], shapes: Any, whole: bool) -> Any:
    """Returns the updates of the parameters: this device's parts, or `whole` ones."""
    avals, treedef = flattened(shapes)
    leaves: list[Any] = list(results)
    parts = {}
    for i, (value, aval) in enumerate(zip(results, avals, strict=True)):
        if not is_dealt(aval, by_part.shapes) or (whole and not isinstance(value, Dealt)):
            leaves[i] = by_part.whole(value, aval, "an update")
        else:
            parts[i] = Part(by_part.part(value, aval), tuple(aval.shape))
            leaves[i] = Part(OwnUpdate(parts[i].array), parts[i].shape)
    if whole and parts:
        paths = paths_of(shapes)
        gathered = by_part.dealer.gather(list(parts.values()), [paths[i] for i in parts])
        for i, array in zip(parts, gathered, strict=True):
            leaves[i] = array
    return treedef.unflatten(leaves)


def _check_parts(trees: Any, by_part: ByPart) -> None:
    """Raises ConfigError if parts are of other parameters, or were dealt to another number of devices."""
    for leaf, path in with_paths(trees):
        if not is_part(leaf):
            continue
        if leaf.shape not in by_part.shapes:
            raise ConfigError(
                f"sharded: {path} of (state, params) is a part of an array of shape {leaf.shape}, and no parameter has "
                "this shape. The state belongs to another model: make it anew, state = optimizer.init(params)."
            )
        expected = -(-leaf.size // by_part.dealer.count)
        if leaf.array.shape != (expected,):
            raise ConfigError(
                f"sharded: {path} of (state, params) has {leaf.array.size} elements of an array of shape {leaf.shape} "
                f"here, and one of {by_part.dealer.count} parts has {expected}. Say where parts lie by part_specs, in "
                "in_specs of shard_map; and deal a state that was made for another number of devices anew: gather it "
                "before it is saved, and deal it when it has been restored (docs/train/sharded.md)."
            )


def _check_arguments(gradients: Any, extra: Any, dealer: Dealer) -> None:
    """Raises ConfigError if gradients are parts, or types show that devices give other extra arguments."""
    for leaf, path in with_paths(gradients):
        if is_part(leaf):
            raise ConfigError(
                f"sharded: the gradient{path} is a Part, as those with respect to the parts are. sharded takes each "
                "device's own gradients, of whole arrays: gather the parts outside of the loss, params = "
                f"gather(parts, {dealer.axis_name!r}), and give update the gradients with respect to these params."
            )
    for leaf, path in with_paths(extra):
        if known_to_vary(leaf, dealer.axis_name):
            raise ConfigError(
                f"sharded: the argument{path} of update varies from device to device, and each would update its part "
                f"by a value of its own. Give the mean: jax_passing.pmean(value, {dealer.axis_name!r})."
            )
