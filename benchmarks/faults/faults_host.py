"""A host of the training that `faults.py` disturbs: the one of examples/train_elastic.py, with as many parameters as it
is told. It notes each step that it has taken, with a digest of all parameters, as a line of JSON.

SIGUSR1 makes it raise an exception in its next step, SIGUSR2 makes it call sys.exit(0) there.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jax_passing

if TYPE_CHECKING:
    import train_elastic
else:  # hosts whose program differs have another copy of it
    sys.path.insert(0, os.environ["FAULTS_EXAMPLES"])
    import train_elastic

FLOATS_PER_UNIT = 64 + 1 + 10  # of a hidden unit of the example
RATE = 1e-3  # so wide a layer wants small steps


class Training(train_elastic.Training):
    """`compile_s`: how much longer its step takes to compile. `step_s`: a step takes at least so long."""

    def __init__(self, log: Path, step_s: float, compile_s: float):
        self._compile_s, self._step_s = compile_s, step_s
        super().__init__()
        self._log = log.open("a")
        self._signal = 0
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _step_of(self, *arguments: Any) -> Any:
        time.sleep(self._compile_s)  # it is called when it is traced
        return super()._step_of(*arguments)

    def step(self, session: jax_passing.Session) -> None:
        if self._signal == signal.SIGUSR1:
            raise RuntimeError("the benchmark wants an exception here")
        if self._signal == signal.SIGUSR2:
            sys.exit(0)
        began, number = time.monotonic(), self.completed
        super().step(session)
        if session.is_rehearsing:  # it compiles, and the step counts for nobody
            return
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.state.parameters):
            digest.update(np.asarray(leaf).tobytes())
        self.note(number, session, digest.hexdigest()[:16])
        time.sleep(max(0.0, self._step_s - (time.monotonic() - began)))

    def note(self, number: int, session: jax_passing.Session, digest: str) -> None:
        line = (time.monotonic(), session.epoch, session.rank, session.world_size, number, digest)
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, help="a path, in which {rank} stands for this host's")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--mebibytes", type=float, default=1.0)
    parser.add_argument("--compile-s", type=float, default=0.0)
    parser.add_argument("--schedule", help="take the steps by these numbers of hosts, without faults")
    given = parser.parse_args()
    train_elastic.HIDDEN = max(1, round(given.mebibytes * 2**18 / FLOATS_PER_UNIT))
    train_elastic.STEPS_MAX, train_elastic.RATE = given.steps, RATE
    log = Path(given.log.format(rank=os.environ["JAX_PASSING_RANK"]))
    training = Training(log, given.step_s, given.compile_s)
    if given.schedule:
        train_elastic.train_in_order(training, given.schedule, int(os.environ["JAX_PASSING_RANK"]))
        return
    with jax_passing.init(axis_name="d") as session:
        train_elastic.train(session, training, given.steps)


if __name__ == "__main__":
    main()
