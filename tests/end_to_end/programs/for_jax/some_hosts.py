"""A program that runs on a part of the hosts at a time: some_hosts.py first | last | dies | idle.

The last host ends early.

first: the session is opened by hosts of which the last isn't one; last: when it is ending already; dies: by an error,
without which it would have a part in the first sum; idle: no host sums, and the last one is late.
"""

import os
import sys
import time
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from over_mesh import placed


def check(devices: Sequence[jax.Device]) -> None:
    """Sums numbers that tell which devices took part, in some order of these."""
    if jax.process_index() not in {device.process_index for device in devices}:
        return
    mesh = Mesh(np.asarray(devices), ("d",), axis_types=(AxisType.Auto,))
    own = np.array([2.0**number for number in range(jax.device_count())], np.float32)
    numbers = own[[jax.devices().index(device) for device in devices]]
    total = jax.jit(lambda x: x.sum(), out_shardings=jax.NamedSharding(mesh, P()))(placed(mesh, numbers, "d"))
    assert float(total) == numbers.sum(), (float(total), numbers)


def main() -> None:
    rank, hosts = int(os.environ["HOST_RANK"]), int(os.environ["HOST_COUNT"])
    jax.distributed.initialize(os.environ["COORDINATOR"], hosts, rank)
    devices = jax.devices()
    own = jax.local_device_count()
    if sys.argv[1] == "first":
        check(devices[: 2 * own])  # the last host has no part in it
        check(devices)
        check(devices[1:-1])  # a part of the devices of two hosts
        check(devices[-2 * own :])
        check(devices[:own])
        check(devices[::-1])
        check(devices[own - 1 : own + 1])  # one device of each of two hosts
    if sys.argv[1] == "dies":
        assert rank < hosts - 1, "the last host dies"
        check(devices)
    if sys.argv[1] == "idle":
        time.sleep(6 * rank)
    elif rank < hosts - 1:
        time.sleep(2)  # the last host is ending
        for _ in range(3):
            check(devices[: 2 * own])
            time.sleep(4)  # for longer than the last host would wait for sums
        check(devices[1 : own + 1])
    print("as expected", flush=True)


main()
