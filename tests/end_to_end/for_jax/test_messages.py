"""XLA's collective permute and all-to-all go from host to host, in jobs with and without a key."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jax_passing.protocol import keys
from support.jobs import for_jax
from support.jobs.cluster import finish
from support.keys import write_key

if TYPE_CHECKING:
    from support.jobs.cluster import Cluster

MIB = 1 << 20


def key_files(folder: Path, job: str) -> tuple[Path, Path]:
    """Returns a switch's key file, and that of a job."""
    switch_key = keys.new_key()
    of_switch = write_key(folder / "switch.key", keys.SWITCH, switch_key)
    return of_switch, write_key(folder / "job.key", keys.JOB, keys.job_key(switch_key, job))


@pytest.mark.parametrize(("hosts", "devices", "has_key"), [(3, 1, True), (2, 2, False)])
def test_all_hosts_send_long_messages_at_once(
    cluster: "Cluster", tmp_path: Path, hosts: int, devices: int, has_key: bool
) -> None:
    of_switch, of_job = key_files(tmp_path, "messages")
    switch = cluster.start_switch("127.0.0.1:0", "--key-file", str(of_switch)) if has_key else cluster.switch
    env = {"JAX_PASSING_SWITCH": switch.address, "JAX_PASSING_JOB": "messages"}
    env |= {"JAX_PASSING_KEY_FILE": str(of_job)} if has_key else {}
    size_bytes = 32 * MIB // devices
    finish(for_jax.start(cluster, "long_messages.py", str(size_bytes), hosts=hosts, devices=devices, env=env))
