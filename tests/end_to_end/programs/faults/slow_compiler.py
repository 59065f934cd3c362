"""An elastic training whose step takes COMPILES_S to compile, and whose state has STATE_MIB. Says how long it stood."""

import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import DeadlineExceededError, HostJoinedError, HostLostError, SwitchLostError, translate

COMPILES_S = float(os.environ.get("COMPILES_S", "0"))
STATE_MIB = int(os.environ.get("STATE_MIB", "1"))
STEP_S = 0.09
ELEMENTS = 1 << 18  # 1 MiB, which each step sums


def initial_state():
    return np.zeros((), np.int32), np.ones(ELEMENTS, np.float32), np.ones((STATE_MIB - 1) * ELEMENTS, np.float32)


def step_of(parameters, examples):
    time.sleep(COMPILES_S)  # as it is traced
    _, gradient = jax_passing.overlap(lambda p, x: (jnp.sin(p) * x.mean()).sum(), "d")(parameters, examples)
    return parameters - 0.1 * gradient


class Training:
    def __init__(self):
        mesh = jax.sharding.Mesh(jax.local_devices()[:1], ("d",))
        mapped = partial(jax.shard_map, mesh=mesh, out_specs=P())
        self.take_step = jax.jit(mapped(step_of, in_specs=(P(), P("d"))))
        self.from_rank_0 = jax.jit(mapped(lambda state: jax_passing.broadcast(state, "d"), in_specs=P()))
        self.everywhere = NamedSharding(mesh, P())
        self.state = self.before = None
        self.stepped_s = time.monotonic()
        self.stands = True

    @property
    def completed(self):
        return None if self.state is None else int(self.state[0])

    def agree(self, session):
        if session.rank >= session.survivors:
            self.state = None
        elif self.completed != session.step:
            self.state = self.before
        if session.survivors < session.world_size:
            state, began = initial_state() if self.state is None else self.state, time.monotonic()
            self.state = self.before = jax.block_until_ready(self.from_rank_0(jax.device_put(state, self.everywhere)))
            print(f"broadcast took {time.monotonic() - began:.3f} s", flush=True)

    def step(self, session):
        began = time.monotonic()
        number, parameters, rest = self.state
        parameters = jax.block_until_ready(self.take_step(parameters, np.ones((8, 4), np.float32)))
        self.before, self.state = self.state, (np.array(int(number) + 1, np.int32), parameters, rest)
        if self.stands:
            does = "rehearses with" if session.is_rehearsing else "is one of"
            now = time.monotonic()
            print(f"{does} {session.world_size} hosts, stood {now - self.stepped_s:.3f} s", flush=True)
            self.stands = False
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
        self.stepped_s = time.monotonic()


def main():
    with jax_passing.init(axis_name="d", world_size_min=2) as session:
        training = Training()
        while True:
            try:
                with translate():
                    training.agree(session)
                    while True:
                        training.step(session)
            except (HostLostError, HostJoinedError, SwitchLostError, DeadlineExceededError) as error:
                print(f"after step {training.completed}: {type(error).__name__}: {error}", flush=True)
            training.stands = True
            session.rejoin(training.completed)


if __name__ == "__main__":
    main()
