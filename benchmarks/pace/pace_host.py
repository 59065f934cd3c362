"""One host of pace.py: trains by every method, with every kind of straggler, and prints what it measured as JSON."""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from pace_methods import METHODS, Method
from parameter_server import Client

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from flax import linen as nn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jax_passing
import jax_passing.optax as pace
import train_digits
from jax_passing.predict.pace import Stragglers

SHARE = 32  # examples of each host in a step
MODELS = {
    "digits": train_digits.MODEL,
    "large": nn.Sequential([nn.Dense(1024), nn.tanh, nn.Dense(1024), nn.tanh, nn.Dense(10)]),
}


class Training:
    """A model on digits, and what it takes to train it on this host."""

    def __init__(self, model: str, session: jax_passing.Session, server: str) -> None:
        digits = load_digits()
        pixels = (digits.images / 16).astype(np.float32)
        pixels = pixels[..., np.newaxis] if model == "digits" else pixels.reshape(len(pixels), -1)
        self.images, self.test_images, self.labels, self.test_labels = train_test_split(
            pixels, digits.target, test_size=0.2, random_state=2, stratify=digits.target
        )
        self.model, self.session, self.server = MODELS[model], session, server
        self.mesh = jax.sharding.Mesh(jax.local_devices(), ("d",))
        self.start = self.model.init(jax.random.key(0), self.images[:1])
        self.right = jax.jit(lambda params, x, y: (self.model.apply(params, x).argmax(1) == y).mean())
        self.gradients = jax.jit(jax.grad(self.loss_of))

    def loss_of(self, params: Any, images: Any, labels: Any) -> Any:
        scores = self.model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    def mapped(self, f: Any, in_specs: Any) -> Any:
        return jax.jit(jax.shard_map(f, mesh=self.mesh, in_specs=in_specs, out_specs=P()))

    def batch(self, step: int) -> tuple[Any, Any]:
        drawn = np.random.default_rng((0, step)).permutation(len(self.labels))
        mine = drawn[self.session.rank * SHARE :][:SHARE]
        return self.images[mine], self.labels[mine]


class ByOptimizer:
    """Trains by a transformation of jax_passing.optax."""

    def __init__(self, training: Training, method: Method) -> None:
        assert method.make is not None
        optimizer = method.make(pace, optax.sgd(method.rate), "d")

        def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
            own = jax.lax.pcast(params, "d", to="varying")
            gradients = jax.grad(training.loss_of)(own, images, labels)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        self._optimizer, self._start = optimizer, training.start
        # Else each step copies what the hosts share, though it changes in few of them.
        self._step = jax.jit(training.mapped(step, (P(), P(), P("d"), P("d"))), donate_argnums=(0, 1))
        self._finish = training.mapped(pace.finish, P())

    def begin(self) -> None:
        self.params = jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), self._start)
        self._state = self._optimizer.init(self.params)

    def step(self, images: Any, labels: Any) -> None:
        self.params, self._state = jax.block_until_ready(self._step(self.params, self._state, images, labels))

    def end(self) -> dict[int, int]:
        jax.block_until_ready(self._finish(self._state))
        return {}


class ByServer:
    """Trains by the parameter server."""

    def __init__(self, training: Training, method: Method) -> None:
        self._training = training
        # An example moves parameters as far as where the hosts' gradients are averaged.
        self._rate = method.rate / training.session.world_size
        self._client = Client(training.server, training.start)

    def begin(self) -> None:
        if self._training.session.rank == 0:
            self._client.begin(self._training.start)
        jax_passing.barrier()
        self.params = self._client.newest()

    def step(self, images: Any, labels: Any) -> None:
        gradients = self._training.gradients(self.params, images, labels)
        self.params = self._client.push(jax.tree.map(lambda g: -self._rate * g, gradients))

    def end(self) -> dict[int, int]:
        jax_passing.barrier()
        self._client.newest()
        return self._client.staleness


def measure(
    training: Training, by: Any, stragglers: Stragglers, steps: int, compute_s: float, evaluate_every: int
) -> dict[str, Any]:
    """A step takes at least `compute_s`, times how slow this host is: most of it asleep, as if on processors of its
    own. Accuracy is looked at while the clocks stand still."""
    by.begin()
    jax_passing.barrier()
    hosts, rank = training.session.world_size, training.session.rank
    clock_s, processor_s, accuracy = 0.0, 0.0, []
    for number in range(1, steps + 1):
        batch = training.batch(number)
        began, busy_s = time.perf_counter(), time.process_time()
        time.sleep(compute_s * float(stragglers.factors(hosts, number)[rank]))
        by.step(*batch)
        clock_s += time.perf_counter() - began
        processor_s += time.process_time() - busy_s
        if number % evaluate_every == 0:
            right = training.right(by.params, training.test_images, training.test_labels)
            accuracy.append((clock_s, float(right)))
    return {"clock_s": clock_s, "processor_s": processor_s, "accuracy": accuracy, "staleness": by.end()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", help="JSON of pace.py")
    parser.add_argument("--server", required=True)
    arguments = parser.parse_args()
    plan = json.loads(arguments.plan)
    warnings.simplefilter("ignore", jax_passing.errors.InsideHostWarning)  # "alone" is meant to be
    with jax_passing.init(axis_name="d", deadline_s=plan["limit_s"]) as session:  # others wait long for a straggler
        training = Training(plan["model"], session, arguments.server)
        for name in plan["methods"]:
            method = METHODS[name]
            by = (ByServer if method.make is None else ByOptimizer)(training, method)
            # Compiles, and shows all hosts the order of sums.
            measure(training, by, Stragglers(), 2 * max(1, method.pace.every) + method.pace.delay, 0.0, 1)
            for stragglers in plan["stragglers"]:
                found = measure(
                    training, by, Stragglers(*stragglers), plan["steps"], plan["compute_s"], plan["evaluate_every"]
                )
                print(json.dumps({"method": name, "stragglers": stragglers, **found}), flush=True)


if __name__ == "__main__":
    main()
