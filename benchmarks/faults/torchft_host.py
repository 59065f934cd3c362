"""The same training on torchft, as a host of it: `faults.py --contender torchft` starts this in the environment that
FAULTS_TORCHFT names, which has `torch` and `torchft`. Its notes are those of `faults_host.py`.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import time
from types import FrameType

import numpy as np
import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

SHARE = 32  # examples of each host in a step
FLOATS_PER_UNIT = 64 + 1 + 10  # of a hidden unit
RATE, MOMENTUM = 1e-3, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--mebibytes", type=float, default=1.0)
    given = parser.parse_args()
    pending = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal pending
        pending = number

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, on_signal)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    hidden = max(1, round(given.mebibytes * 2**18 / FLOATS_PER_UNIT))
    model = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 10, bias=False))
    inner = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        min_replica_size=int(os.environ["JAX_PASSING_WORLD_SIZE_MIN"]),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            inner.load_state_dict(state["optimizer"]),
        ),
        replica_id=f"host{os.environ['JAX_PASSING_RANK']}_",
        store_addr=socket.gethostname(),  # the others call it
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=socket.gethostname(),
        lighthouse_addr=f"http://{os.environ['JAX_PASSING_SWITCH']}",
    )
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    with open(given.log, "a") as log:
        while manager.current_step() < given.steps:
            if pending == signal.SIGUSR1:
                raise RuntimeError("the benchmark wants an exception here")
            if pending == signal.SIGUSR2:
                sys.exit(0)
            began, step = time.monotonic(), manager.current_step()
            optimizer.zero_grad()  # which begins to agree on who is there
            drawn = np.random.default_rng((step, int(os.environ["JAX_PASSING_RANK"])))
            images = torch.from_numpy(drawn.random((SHARE, 64), np.float32))
            labels = torch.from_numpy(drawn.integers(0, 10, SHARE))
            torch.nn.functional.cross_entropy(parallel(images), labels).backward()
            optimizer.step()
            number = manager.current_step() - 1
            if number >= step:  # it was committed
                digest = hashlib.sha256()
                for parameter in model.parameters():
                    digest.update(parameter.detach().numpy().tobytes())
                world = manager.num_participants()
                line = time.monotonic(), manager._quorum_id, manager.participating_rank() or 0, world, number
                log.write(json.dumps([*line, digest.hexdigest()[:16]]) + "\n")
                log.flush()
            time.sleep(max(0.0, given.step_s - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
