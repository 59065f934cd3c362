"""`init` opens the session of a worker of Ray Train, and starts a switch for the run if there is none.

Ray's JaxTrainer initializes jax.distributed on TPUs and GPUs alone: without this, each worker on CPUs would train by
itself.
"""

import os
import subprocess
import sys
import uuid
from typing import Any

from jax_passing import launchers
from jax_passing.commands.launch import remote
from jax_passing.config import PREFIX, address_text
from jax_passing.errors import ConfigError
from jax_passing.host.init import init as _init
from jax_passing.host.session import Session

END_S = 10.0  # a switch needs less to end


def init(switch: str | None = None, *, job: str | None = None, **settings: Any) -> Session:
    """Opens the session of this worker of Ray Train's, whose rank and world size Ray knows.

    Call it in all workers, at the beginning of the function that they run:

        def work():
            with jax_passing.ray.init(axis_name="d") as session: ...

        JaxTrainer(work, scaling_config=ScalingConfig(num_workers=4)).fit()

    If no switch is named, neither here nor by JAX_PASSING_SWITCH, worker 0 starts one on its node, which ends with the
    session. One such switch carries the sums of all (docs/operate/switches.md): name others for large models.

    Args:
      switch: as for `jax_passing.init`.
      job: as for `jax_passing.init`. Default: a name that worker 0 makes up for this start of the workers.
      settings: all others of `jax_passing.init` but rank and world_size.

    Raises:
      ConfigError: this process is no worker of Ray Train's; or as `jax_passing.init`.
      PassingError: as `jax_passing.init`.
    """
    if (rank := launchers.rank_of_ray()) is None:
        raise ConfigError(
            "jax_passing.ray.init is for the function that workers of Ray Train run, and this process isn't one. In "
            "an actor, call jax_passing.init(switch, job=..., rank=..., world_size=...)."
        )
    if rank.world_size == 1:
        return _init(switch, job=job, rank=0, world_size=1, **settings)
    from ray.train.collective import broadcast_from_rank_zero

    started: subprocess.Popen[bytes] | None = None
    run: tuple[str | None, str | None] = switch, job
    if rank.rank == 0:
        switch = switch or os.environ.get(PREFIX + "SWITCH")
        if switch is None:
            started, switch = _start_switch()
        run = switch, job or os.environ.get(PREFIX + "JOB") or f"ray-{uuid.uuid4().hex[:12]}"
    try:
        switch, job = broadcast_from_rank_zero(run)
        session = _init(switch, job=job, rank=rank.rank, world_size=rank.world_size, **settings)
    except BaseException:
        _end(started)
        raise
    session.closers.append(lambda: _end(started))
    return session


def _start_switch() -> tuple["subprocess.Popen[bytes]", str]:
    """Returns a process that ends with this one, or when its standard input is closed; and the switch's address."""
    from ray.util import get_node_ip_address

    command = [sys.executable, "-P", "-m", "jax_passing.commands.launch.remote"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    listen = address_text(get_node_ip_address(), 0)
    arguments = ["-P", "-m", "jax_passing", "switch", "--quiet", "--listen", listen]
    process.stdin.write(remote.order(arguments, {"JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": "1"}, os.getcwd()))
    process.stdin.flush()
    first = process.stdout.readline().decode().strip()
    if not first.startswith("listening on "):
        _end(process)
        raise ConfigError(f"The switch of this run didn't start at {listen}; its messages are in the worker's log.")
    return process, first.removeprefix("listening on ")


def _end(process: "subprocess.Popen[bytes] | None") -> None:
    if process is None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
