"""Trains a classifier of handwritten digits on hosts that come and go; its bits are those of a run without faults.

    jax-passing run --hosts 4 --restarts 2 examples/train_elastic.py --step-s 0.1

Meanwhile kill a host (kill -9): the others go on without it, and with it when it has been started again. Started on
several machines with a switch of their own and a standby, it survives the loss of the switch (docs/train/elastic.md).

Each host prints at the end how many hosts took each step, which is the *schedule* of the run, and a digest of the bits
of all parameters. With

    jax-passing run --hosts 4 examples/train_elastic.py --schedule 4x60,3x25,4x115

hosts leave and join in good order, without any fault: the digest is the same. With --check the hosts that are there at
the end do that themselves, and compare.
"""

import argparse
import hashlib
import itertools
import os
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import jax_passing
from jax_passing.errors import InterruptionError, translate

SHARE = 32  # examples of each host in a step: so programs keep their shapes in worlds of any size
HIDDEN, RATE, MOMENTUM = 128, 0.1, 0.9
STEPS_MAX = 4096
PATIENCE_S = 600.0  # without a step


class State(NamedTuple):
    """The training's state after `step` steps. `hosts`: how many hosts took each step, 0 for steps to come."""

    step: Any
    hosts: Any
    parameters: Any
    momentum: Any


def initial_state():
    shapes = {"first": (64, HIDDEN), "bias": (HIDDEN,), "second": (HIDDEN, 10)}
    drawn = np.random.default_rng(0)
    parameters = {name: drawn.normal(size=shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    momentum = jax.tree.map(np.zeros_like, parameters)
    return State(np.zeros((), np.int32), np.zeros(STEPS_MAX, np.int32), parameters, momentum)


def loss_of(parameters, images, labels):
    hidden = jnp.tanh(images @ parameters["first"] + parameters["bias"])
    scores = jax.nn.log_softmax(hidden @ parameters["second"])
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


class Training:
    """A host trains by this, in one session after the other.

    Attributes:
      state: after the last step that this host completed; None while it has none.
      before: after the step before that, which may be the last one of other hosts.
    """

    def __init__(self, step_s=0.0, checkpoints=None):
        """`step_s`: a step takes at least so long."""
        self.step_s = step_s
        self.waits_since: float | None = None  # for the first step since it began, or was interrupted
        self.stepped = time.monotonic()  # the last time
        digits = load_digits()
        self.images, self.labels = digits.images.reshape(-1, 64).astype(np.float32) / 16, digits.target.astype(np.int32)
        self.checkpoints = checkpoints
        self.state: Any = None
        self.before: Any = None
        # Each is compiled once, for worlds of any size.
        mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
        mapped = partial(jax.shard_map, mesh=mesh, out_specs=P())
        self.take_step = jax.jit(mapped(self._step_of, in_specs=(P(), P(), P("d"), P("d"))))
        self.from_rank_0 = jax.jit(mapped(lambda state: jax_passing.broadcast(state, "d"), in_specs=P()))
        self.everywhere = NamedSharding(mesh, P())

    @staticmethod
    def _step_of(parameters, momentum, images, labels):
        _, gradients = jax_passing.overlap(loss_of, "d")(parameters, images, labels)
        momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - RATE * m, parameters, momentum), momentum

    @property
    def completed(self):
        """Returns how many steps this host has completed, for `session.rejoin`."""
        return None if self.state is None else int(self.state.step)

    def agree(self, session):
        """Afterwards all hosts have the state after `session.step`, whatever they had before."""
        self.waits_since = self.waits_since or time.monotonic()
        if session.rank >= session.survivors:
            self.state = None  # a newcomer, or one that was away for long
        elif self.completed != session.step:
            self.state = self.before  # one step ahead of others
        if session.survivors < session.world_size:
            self.share()

    def share(self):
        """Rank 0's state on all hosts."""
        state = self.state
        if state is None:
            state = initial_state() if self.checkpoints is None else self.checkpoints.last(initial_state())
        self.state = self.before = jax.block_until_ready(self.from_rank_0(jax.device_put(state, self.everywhere)))

    def step(self, session):
        began, number = time.monotonic(), self.completed
        drawn = np.random.default_rng((0, number)).permutation(len(self.labels))
        mine = drawn[session.rank * SHARE : (session.rank + 1) * SHARE]
        results = self.take_step(self.state.parameters, self.state.momentum, self.images[mine], self.labels[mine])
        jax.block_until_ready(results)
        hosts = np.array(self.state.hosts)
        hosts[number] = session.world_size
        self.before, self.state = self.state, State(np.array(number + 1, np.int32), hosts, *results)
        if self.checkpoints is not None and session.rank == 0:
            self.checkpoints.keep(self.state)
        if self.waits_since is not None and not session.is_rehearsing:
            text = f"{session.world_size} hosts go on from step {session.step}"
            print(f"{text}, the next one done after {time.monotonic() - self.waits_since:.2f} s", flush=True)
            self.waits_since = None
        self.stepped = time.monotonic()
        time.sleep(max(0.0, self.step_s - (self.stepped - began)))

    def interrupted(self, error):
        """Raises the error again if there was no step for so long that nobody can be expected to come any more."""
        self.waits_since = time.monotonic()
        if self.waits_since - self.stepped > PATIENCE_S:
            raise error
        print(f"after step {self.completed}: {type(error).__name__}: {error}", flush=True)


class Checkpoints:
    """Checkpoints by orbax every `every` steps, for when no host is left that has the state."""

    def __init__(self, folder, every=25):
        import orbax.checkpoint as ocp  # takes seconds

        self.every = every
        self.args = ocp.args
        self.manager = ocp.CheckpointManager(
            os.path.abspath(folder), options=ocp.CheckpointManagerOptions(max_to_keep=2)
        )

    def keep(self, state):
        if int(state.step) % self.every == 0:
            self.manager.save(int(state.step), args=self.args.StandardSave(state._asdict()))
            self.manager.wait_until_finished()

    def last(self, otherwise):
        step = self.manager.latest_step()
        if step is None:
            return otherwise
        return State(**self.manager.restore(step, args=self.args.StandardRestore(otherwise._asdict())))


def train(session, training, steps):
    """Whatever happens to other hosts and to the switch."""
    is_interrupted = False
    while True:
        try:
            with translate():
                if is_interrupted:
                    session.rejoin(training.completed)
                training.agree(session)
                while training.completed < steps:
                    training.step(session)
            return
        except InterruptionError as error:
            is_interrupted = True
            training.interrupted(error)


def train_in_order(training, schedule, rank):
    """The steps of a schedule by hosts that join and leave as it says. Each part is a job of its own."""
    job, until = os.environ.get("JAX_PASSING_JOB", "elastic"), 0
    training.state, training.before, training.step_s = None, None, 0.0
    for part, (world_size, steps) in enumerate(tuple(map(int, one.split("x"))) for one in schedule.split(",")):
        until += steps
        if rank >= world_size:
            continue
        own = {"job": f"{job}-{part}", "rank": rank, "world_size": world_size, "world_size_min": world_size}
        with jax_passing.init(axis_name="d", join_deadline_s=600, **own) as session:
            training.share()
            while training.completed < until:
                training.step(session)


def report(training, rank):
    """Returns (schedule, digest)."""
    hosts = np.array(training.state.hosts)[: training.completed]
    schedule = ",".join(f"{count}x{len(list(steps))}" for count, steps in itertools.groupby(hosts.tolist()))
    parameters = jax.tree.map(np.asarray, training.state.parameters)
    digest = hashlib.sha256(b"".join(leaf.tobytes() for leaf in jax.tree.leaves(parameters))).hexdigest()[:16]
    hidden = np.tanh(training.images @ parameters["first"] + parameters["bias"])
    right = np.argmax(hidden @ parameters["second"], axis=1) == training.labels
    print(f"rank {rank}: accuracy {right.mean():.1%}, schedule {schedule}, digest {digest}", flush=True)
    return schedule, digest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.0, help="a step takes at least so long: time to do harm")
    parser.add_argument("--schedule", help="take the steps by these numbers of hosts, without faults")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="that all hosts can read")
    parser.add_argument("--check", action="store_true", help="take the same steps once more, without faults")
    given = parser.parse_args()
    rank, world_size_min = (
        int(os.environ.get(f"JAX_PASSING_{name}", n)) for name, n in (("RANK", 0), ("WORLD_SIZE_MIN", 1))
    )
    training = Training(given.step_s, Checkpoints(given.checkpoint) if given.checkpoint else None)
    if given.schedule:
        train_in_order(training, given.schedule, rank)
        report(training, rank)
        return
    with jax_passing.init(axis_name="d", world_size_min=world_size_min) as session:
        does = "compiles for now" if session.is_rehearsing else "has joined"
        print(f"process {os.getpid()} {does} as rank {session.rank} of {session.world_size}", flush=True)
        train(session, training, given.steps)
        rank = session.rank
        schedule, digest = report(training, rank)
    if given.check:
        train_in_order(training, schedule, rank)
        print("same bits without faults" if report(training, rank) == (schedule, digest) else "OTHER BITS", flush=True)


if __name__ == "__main__":
    main()
