"""`diloco` lets hosts train by themselves; an outer optimizer moves shared parameters by how far they went."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_passing.collective.inside_host import each_device_own, mean_inside_host
from jax_passing.collective.naming.sites import paths_of
from jax_passing.collective.primitives.buckets import DEFAULT_BUCKET_BYTES
from jax_passing.collective.psum import pmean
from jax_passing.errors import ConfigError
from jax_passing.optax.arguments import check_count, check_params, named_by, not_in_multi_steps
from jax_passing.optax.fragments import make_fragments, offset
from jax_passing.optax.parameters import copied, updates_to
from jax_passing.optax.pending import Pending, mean_of, nothing, start

Leaves = dict[str, Any]  # by path


class Fragment(NamedTuple):
    """Parameters that are synchronised together.

    Attributes:
      shared: the outer parameters, by path; the same on all hosts.
      outer: the state of the outer optimizer; the same on all hosts.
      pending: the sum of outer gradients; None without a delay.
    """

    shared: Leaves
    outer: Any
    pending: Pending | None


class DilocoState(NamedTuple):
    """The state of `diloco`.

    Attributes:
      steps: int32[], so far; the same on all hosts.
      inner: the state of the inner optimizer, which is each host's own.
      fragments: what the hosts share.
    """

    steps: jax.Array
    inner: Any
    fragments: tuple[Fragment, ...]


def diloco(
    inner: optax.GradientTransformation,
    outer: optax.GradientTransformation | None,
    axis_name: Any,
    *,
    every: int,
    fragments: int = 1,
    delay: int = 0,
    mixing: float | None = None,
    wire_dtype: str | None = None,
    strategy: str | None = None,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """Takes steps on each host's own gradients; every `every` steps an outer optimizer moves what all hosts share.

        optimizer = jax_passing.optax.diloco(optax.adamw(3e-4), None, "d", every=32, fragments=4, delay=2)
        updates, state = optimizer.update(gradients, state, params)    # each device's own gradients
        model = jax_passing.optax.shared_params(state, params)         # for evaluation: the same on all hosts

    The devices of one host average their gradients at every step, which doesn't use the network. Every H steps a
    host's *outer gradient* is how far its parameters went since: shared minus own ones. The outer optimizer applies the
    mean of all hosts' to the shared parameters, and the host's own start from these again (Douillard et al., DiLoCo,
    2023). With fragments, a part of the parameters at a time does so, at steps that are spread out over the H; with a
    delay of V steps, the sum travels while the host trains on (Douillard et al., Streaming DiLoCo, 2025).

    A host sends the parameters' bytes / H at a step, by `wire_dtype`; at most a fragment at once. It keeps two copies
    of the parameters and the outer optimizer's state (a third copy for momentum); `inner` has one state on each host,
    which isn't averaged. With H = 1 and outer optax.sgd(1.0) it is data parallelism of parameters, up to rounding.
    Published trainings of language models go as well as synchronous ones with H up to about 100.

    In an elastic session a host that dies costs only what it did since the last synchronisation. After each meeting
    of the hosts call `agree`. At the end of a training call `finish`.

    Args:
      inner: any optimizer.
      outer: moves the shared parameters; None: optax.sgd(0.7, momentum=0.9, nesterov=True), as published.
      axis_name: as for `psum`; of a mesh inside of each host.
      every: H, 1 or more. It must be the same on all hosts, as everything here.
      fragments: into how many parts the parameters are dealt, by arrays.
      delay: V, less than `every`: how many steps later an outer gradient is applied.
      mixing: which share of its own parameters a host keeps when shared ones arrive, 0 to less than 1. What it did
        during the delay is in there alone, so 0 throws that away. None: as published, 0.5 with a delay and 0 without.
      wire_dtype: how outer gradients travel, as for `psum`: "int8" and "int4" do little harm here.
      strategy: as for `psum`.
      bucket_bytes: as for `psum`.

    Returns: A transformation whose `update` takes each device's own gradients and the host's parameters, within the
      axis.

    Raises:
      ConfigError: a number is out of its range; `init` got fewer arrays than there are fragments, or arrays
        of other dtypes than floats; `update` has no parameters, the mesh spans the hosts,
        or `optax.MultiSteps` is around it, under `check_vma=True` or with a delay.
    """
    check_count("diloco", "every", every, 1, "It says after how many steps a parameter is synchronised.")
    check_count("diloco", "fragments", fragments, 1, "It says into how many parts the parameters are dealt.")
    check_count("diloco", "delay", delay, 0, "It says how many steps later an outer gradient is applied.")
    if delay >= every:
        raise ConfigError(
            f"diloco(every={every}, delay={delay}): a fragment's sum must be done before its next one starts. Write "
            f"delay={every - 1} or less, or a larger `every`."
        )
    if mixing is None:
        mixing = 0.5 if delay else 0.0
    if isinstance(mixing, bool) or not isinstance(mixing, (int, float)) or not 0 <= mixing < 1:
        raise ConfigError(
            f"diloco(mixing={mixing!r}): expected the share of its own parameters that a host keeps, 0 to less than 1."
        )
    inner = optax.with_extra_args_support(inner)
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    options: dict[str, Any] = {"wire_dtype": wire_dtype, "strategy": strategy, "bucket_bytes": bucket_bytes}
    numbers = {"every": every, "fragments": fragments, "delay": delay, "mixing": mixing}

    def init(params: Any) -> DilocoState:
        made = tuple(
            Fragment(shared, outer.init(shared), nothing(shared, axis_name, **options) if delay else None)
            for shared in _dealt(params, fragments)
        )
        return DilocoState(jnp.zeros((), jnp.int32), inner.init(params), made)

    @not_in_multi_steps("diloco", sums_stay=delay > 0)
    def update(gradients: Any, state: DilocoState, params: Any = None, **extra: Any) -> tuple[Any, DilocoState]:
        check_params("diloco", params)
        mean = mean_inside_host(gradients, axis_name, "diloco")
        updates, inner_state = inner.update(mean, state.inner, params, **extra)
        steps = state.steps + 1
        before = _by_path(params)
        moves = _by_path(updates)
        made = []
        for number, fragment in enumerate(state.fragments):
            phase = (steps - offset(number, fragments, every)) % every
            given = {path: before[path] for path in fragment.shared}
            moved = {path: moves[path] for path in fragment.shared}
            with named_by(**numbers):
                moved, fragment = synchronised(fragment, phase, given, moved)
            moves |= moved
            made.append(fragment)
        updates = jax.tree.unflatten(jax.tree.structure(updates), list(moves.values()))
        return updates, DilocoState(steps, inner_state, tuple(made))

    def synchronised(fragment: Fragment, phase: Any, params: Leaves, moves: Leaves) -> tuple[Leaves, Fragment]:
        """Returns the updates of the fragment's parameters, and the fragment. All hosts have the same phase and the
        same sums on their way, so all take the same branches."""

        def own_gradient() -> Leaves:
            went = jax.tree.map(jnp.subtract, fragment.shared, optax.apply_updates(params, moves))
            return each_device_own(went, axis_name)

        def arrived(gradient: Leaves) -> tuple[Leaves, Leaves, Any]:
            outer_updates, outer_state = outer.update(gradient, fragment.outer, fragment.shared)
            shared = optax.apply_updates(fragment.shared, outer_updates)

            target = shared
            if mixing:
                own = optax.apply_updates(params, moves)
                target = jax.tree.map(lambda p, to: mixing * p + (1 - mixing) * to, own, shared)
            return updates_to(target, params, moves), shared, outer_state

        def unchanged() -> tuple[Leaves, Leaves, Any]:
            return moves, fragment.shared, fragment.outer

        if fragment.pending is None:
            moved, shared, outer_state = jax.lax.cond(
                phase == 0, lambda: arrived(pmean(own_gradient(), axis_name, **options)), unchanged
            )
            return moved, Fragment(shared, outer_state, None)
        pending = fragment.pending
        ends = pending.is_running & (phase == delay)
        moved, shared, outer_state = jax.lax.cond(ends, lambda: arrived(mean_of(pending, axis_name, moves)), unchanged)
        pending = jax.lax.cond(
            phase == 0,
            lambda: start(own_gradient(), axis_name, **options),
            lambda: jax.tree.map(lambda each: jnp.where(ends, jnp.zeros_like(each), each), pending),
        )
        return moved, Fragment(shared, outer_state, pending)

    return optax.GradientTransformationExtraArgs(init, update)


def shared_params(opt_state: Any, params: Any) -> Any:
    """Returns the parameters that all hosts share, with the same bits, from the state of an optimizer with `diloco`.

    Args:
      opt_state: the state, or one of `optax.chain` or the like that has it within.
      params: any of this structure, such as a host's own. Parameters that `diloco` wasn't given, as with
        `optax.partition`, are returned as they are here.

    Raises:
      ConfigError: the state has nothing of `diloco` within, or more than one, or other parameters.
    """
    return with_leaves(params, _shared_of(opt_state, params))


def not_shared(opt_state: Any, params: Any) -> Leaves:
    """Returns those of `params` that diloco wasn't given. Raises as `shared_params` does."""
    shared = _shared_of(opt_state, params)
    return {path: leaf for path, leaf in _by_path(params).items() if path not in shared}


def with_leaves(params: Any, leaves: Leaves) -> Any:
    """Returns `params` with these in place of those of the same paths."""
    return jax.tree.unflatten(jax.tree.structure(params), list((_by_path(params) | leaves).values()))


def _shared_of(opt_state: Any, params: Any) -> Leaves:
    found = [
        each for each in jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, DilocoState))
        if isinstance(each, DilocoState)
    ]  # fmt: skip
    if len(found) != 1:
        raise ConfigError(
            f"shared_params: the state has {len(found)} states of diloco within, and one was expected. Give it the "
            "state of an optimizer that jax_passing.optax.diloco made."
        )
    shared: Leaves = {}
    for fragment in found[0].fragments:
        shared |= fragment.shared
    if not set(shared).issubset(_paths_of(params)):
        raise ConfigError(
            "shared_params: the state was made for other parameters. Give it those that `init` got, or any with the "
            "same structure."
        )
    return shared


def _by_path(tree: Any) -> Leaves:
    return dict(zip(_paths_of(tree), jax.tree.leaves(tree), strict=True))


def _paths_of(tree: Any) -> list[str]:
    # An nnx.Optimizer gives nnx.Variables to `init`, and what they hold to `update`.
    return [path.removesuffix(".value") for path in paths_of(tree)]


def _dealt(params: Any, count: int) -> list[Leaves]:
    by_path = _by_path(copied(params))
    paths = list(by_path)
    for path, leaf in by_path.items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ConfigError(
                f"diloco: the parameter {path} is {leaf.dtype.name}, and how far it went has no mean of that dtype. "
                "Keep what isn't trained out of the parameters, or give it to jax_passing.optax.set_to_zero() and the "
                "others to diloco, by optax.partition."
            )
    dealt = make_fragments(paths, [leaf.nbytes for leaf in by_path.values()], count)
    return [{paths[index]: by_path[paths[index]] for index in fragment} for fragment in dealt]
