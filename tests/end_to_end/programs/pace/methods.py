"""Each way of training at a looser pace, on all hosts, beside the same method in numpy.

    methods.py [METHOD ...]

Every device of every host has data of its own. Every host reckons the whole job in float64, checks its parameters, and
prints a digest of what must have the same bits on all hosts.
"""

import hashlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jax_passing
import jax_passing.optax as pace

STEPS = 13
RATE, MOMENTUM = 0.1, 0.5
SHAPES = {"layer_0": (40, 3), "layer_1": (40, 3), "layer_10": (40, 3), "bias": (7,)}
# A step errs by at most 16 roundings, of float32 or of fixed point, of what is at most 8 in magnitude. Losses are
# convex and smooth, so that a later step enlarges an error only by momentum: 1 / (1 - MOMENTUM), and 1 / (1 - 0.9) with
# the outer one.
BOUND = STEPS * 16 * 2.0**-24 * 8 / (1 - MOMENTUM)
OUTER = 1 / (1 - 0.9)

Tree = dict[str, np.ndarray]
Targets = dict[str, np.ndarray]  # [device of all, step, *shape]


def start() -> Tree:
    random = np.random.default_rng(1)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def targets_of(devices: int) -> Targets:
    """Each device's loss at a step is half the squared distance from here."""
    random = np.random.default_rng(2)
    return {name: random.normal(size=(devices, STEPS, *shape)).astype(np.float32) for name, shape in SHAPES.items()}


# The methods in numpy. Each returns the parameters of one host after all steps, and the shared ones.


class Momentum:
    """optax.sgd(rate, momentum, nesterov) of a tree."""

    def __init__(self, tree: Tree, rate: float, momentum: float, nesterov: bool = False) -> None:
        self.rate, self.momentum, self.nesterov = rate, momentum, nesterov
        self.trace = {name: np.zeros(leaf.shape) for name, leaf in tree.items()}

    def step(self, tree: Tree, gradient: Tree, names: Any = None) -> None:
        for name in names or tree:
            self.trace[name] = gradient[name] + self.momentum * self.trace[name]
            by = gradient[name] + self.momentum * self.trace[name] if self.nesterov else self.trace[name]
            tree[name] = tree[name] - self.rate * by


def gradient_at(tree: Tree, targets: Targets, devices: slice, step: int) -> Tree:
    return {name: tree[name] - targets[name][devices, step].mean(0, dtype=np.float64) for name in tree}


def exact(tree: Tree) -> Tree:
    return {name: leaf.astype(np.float64) for name, leaf in tree.items()}


def stale_in_numpy(staleness: int) -> Callable[..., Any]:
    def train(hosts: int, targets: Targets, rank: int) -> tuple[Tree, Tree]:
        tree = exact(start())
        inner = Momentum(tree, RATE, MOMENTUM)
        waiting = []
        for step in range(STEPS):
            waiting.append(gradient_at(tree, targets, slice(None), step))
            if step >= staleness:
                inner.step(tree, waiting.pop(0))
        return tree, tree

    return train


def diloco_in_numpy(
    every: int, fragments: list[list[str]], delay: int, mixing: float, outer: tuple[float, float, bool]
) -> Callable[..., Any]:
    """With outer (1, 0, False), one fragment and no delay it is local SGD."""

    def train(hosts: int, targets: Targets, rank: int) -> tuple[Tree, Tree]:
        local = len(targets["bias"]) // hosts
        own = [exact(start()) for _ in range(hosts)]
        inner = [Momentum(tree, RATE, MOMENTUM) for tree in own]
        shared = exact(start())
        moving = Momentum(shared, *outer)
        sent: dict[int, Tree] = {}
        for step in range(STEPS):
            for host, tree in enumerate(own):
                devices = slice(host * local, (host + 1) * local)
                inner[host].step(tree, gradient_at(tree, targets, devices, step))
            for number, names in enumerate(fragments):
                since = (step + 1 - number * every // len(fragments)) % every
                if since == 0:
                    sent[number] = {name: shared[name] - sum(tree[name] for tree in own) / hosts for name in names}
                if since == delay and number in sent:
                    moving.step(shared, sent.pop(number), names)
                    for tree in own:
                        tree.update({name: mixing * tree[name] + (1 - mixing) * shared[name] for name in names})
        return own[rank], shared

    return train


ALL = [list(SHAPES)]
# As equal arrays are dealt out in turns, and the smallest one goes where least is.
TWO = [["layer_0", "layer_10"], ["layer_1", "bias"]]
NESTEROV = (0.7, 0.9, True)
INNER = optax.sgd(RATE, MOMENTUM)

METHODS: dict[str, tuple[Callable[[], Any], Callable[..., Any], float]] = {
    "stale 0": (lambda: pace.stale(INNER, "d", 0), stale_in_numpy(0), BOUND),
    "stale 3": (lambda: pace.stale(INNER, "d", 3), stale_in_numpy(3), BOUND),
    "local_sgd": (
        lambda: pace.local_sgd(INNER, "d", every=4),
        diloco_in_numpy(4, ALL, 0, 0.0, (1.0, 0.0, False)),
        BOUND,
    ),
    "diloco": (
        lambda: pace.diloco(INNER, None, "d", every=4),
        diloco_in_numpy(4, ALL, 0, 0.0, NESTEROV),
        BOUND * OUTER,
    ),
    # With up to 3 hosts an element errs by less than 2/42 of the largest outer gradient, which is below 3; three such
    # errors become at most 5.6 of them by momentum.
    "diloco in 8 bits": (
        lambda: pace.diloco(INNER, None, "d", every=4, wire_dtype="int8"),
        diloco_in_numpy(4, ALL, 0, 0.0, NESTEROV),
        3 * 2 / 42 * 5.6,
    ),
    "streaming diloco": (
        lambda: pace.diloco(INNER, None, "d", every=5, fragments=2, delay=2),
        diloco_in_numpy(5, TWO, 2, 0.5, NESTEROV),
        BOUND * OUTER,
    ),
    # These err by less than 2/42 of the largest gradient at each of STEPS steps, times RATE / (1 - MOMENTUM): less.
    "stale in 8 bits": (lambda: pace.stale(INNER, "d", 2, wire_dtype="int8"), stale_in_numpy(2), 3 * 2 / 42 * 5.6),
    "streaming diloco in 8 bits": (
        lambda: pace.diloco(INNER, None, "d", every=5, fragments=2, delay=2, mixing=0.25, wire_dtype="int8"),
        diloco_in_numpy(5, TWO, 2, 0.25, NESTEROV),
        3 * 2 / 42 * 5.6,
    ),
    "parallel": (
        lambda: pace.diloco(INNER, optax.sgd(1.0), "d", every=1),
        diloco_in_numpy(1, ALL, 0, 0.0, (1.0, 0.0, False)),
        BOUND,
    ),
    "in a chain": (
        lambda: optax.chain(pace.stale(optax.MultiSteps(INNER, 1).gradient_transformation(), "d", 1), optax.scale(1.0)),
        stale_in_numpy(1),
        BOUND,
    ),
}


def trained(optimizer: Any, mesh: Any, mine: Targets, check_vma: bool) -> tuple[Any, Any]:
    """Returns the parameters of this host and the optimizer's state after all steps, with nothing on its way."""

    def step(params: Any, state: Any, targets: Any) -> Any:
        # They are the gradients of each device's own loss.
        own = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "d", to="varying"), params) if check_vma else params
        gradients = jax.tree.map(lambda p, target: p - target[0], own, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def mapped(f: Any, in_specs: Any) -> Any:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=P(), check_vma=check_vma))

    take = mapped(step, (P(), P(), P("d")))
    params: Any = jax.tree.map(jnp.asarray, start())
    state = optimizer.init(params)
    for number in range(STEPS):
        params, state = take(params, state, {name: leaf[:, number] for name, leaf in mine.items()})
    return params, mapped(pace.finish, P())(state)


def distance(one: Any, other: Tree) -> float:
    return max(float(np.abs(np.asarray(one[name], np.float64) - other[name]).max()) for name in other)


def check_newcomers(session: jax_passing.Session, mesh: Any) -> None:
    """A newcomer gets all parameters of rank 0, those too that diloco wasn't given; survivors keep their own."""
    params = {name: np.full(3, session.rank + number, np.float32) for number, name in enumerate(("kept", "trained"))}
    both = {"diloco": pace.diloco(INNER, None, "d", every=2), "none": pace.set_to_zero()}
    state = optax.partition(both, {"kept": "none", "trained": "diloco"}).init(params)

    def agree(params: Any, state: Any, is_newcomer: Any) -> Any:
        return pace.agree(state, params, "d", is_newcomer)[0]

    agreed = jax.jit(jax.shard_map(agree, mesh=mesh, in_specs=P(), out_specs=P()))
    for is_newcomer in (session.rank > 0, False):
        for name, leaf in agreed(params, state, is_newcomer).items():
            assert np.array_equal(leaf, params[name] - session.rank * is_newcomer), (name, leaf)


def main() -> None:
    names = sys.argv[1:] or list(METHODS)
    warnings.simplefilter("error", jax_passing.errors.InsideHostWarning)
    warnings.simplefilter("error", jax_passing.errors.UnfinishedHandlesWarning)
    digest = hashlib.sha256()
    with jax_passing.init(axis_name="d") as session:
        mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        targets = targets_of(session.world_size * mesh.size)
        mine = {name: leaf[session.rank * mesh.size :][: mesh.size] for name, leaf in targets.items()}
        for name in names:
            make, in_numpy, bound = METHODS[name]
            params, state = trained(make(), mesh, mine, check_vma=session.world_size == 2)
            own, shared = in_numpy(session.world_size, targets, session.rank)
            found = distance(params, own)
            assert found <= bound, (name, found, bound)
            of_all = params
            if "diloco" in name or name == "parallel":
                of_all = pace.shared_params(state, params)
                assert distance(of_all, shared) <= bound, name
            if name != "local_sgd":  # ends between two averages
                digest.update(b"".join(np.asarray(leaf).tobytes() for leaf in of_all.values()))
            print(f"{name}: off by {found:.1e} (bound {bound:.1e})")
        check_newcomers(session, mesh)
    print(f"digest {digest.hexdigest()}")


main()
