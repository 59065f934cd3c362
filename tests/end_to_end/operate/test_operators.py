"""Operators end jobs and put ranks out, of real hosts; and what `jax-passing drain` lets through."""

import re
import subprocess
import sys
from pathlib import Path

from support.jobs.cluster import PASSING, Cluster, Process, host_settings

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_elastic.py"


def operate(*arguments: str) -> str:
    done = subprocess.run([*PASSING, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_hosts_raise_what_names_the_operators_action(cluster: Cluster) -> None:
    at = cluster.switch.address
    processes = cluster.start("faults/endless.py", "30", hosts=3, env={"NEXT_SWITCH": at})
    for process in processes:
        process.wait_for("running as process")
    assert "it admits no new job.\n1 job is left." in operate("drain", at, "--reason", "new kernel")
    assert re.search(r"Draining for .* \(new kernel\)", operate("status", at))
    assert f"Job 'endless.py' was ended at the switch at {at}." in operate(
        "end", at, "endless.py", "--reason", "bad data"
    )
    for process in processes:
        text = process.wait_for("raised EndedByOperatorError after .*")[0]
        assert f"The operator of the switch at {at} ended job 'endless.py': bad data." in text
        process.wait_for(r"SwitchDrainingError: .*drains it \(new kernel\)")  # its next job
        assert process.wait() != 0
    operate("drain", at, "--undo")
    for process in cluster.start("faults/endless.py", "30", hosts=3):
        process.wait_for("running as process")


def test_an_elastic_job_goes_on_without_a_rank_that_is_put_out(cluster: Cluster) -> None:
    settings = {"JAX_PASSING_WORLD_SIZE_MIN": "2"}
    hosts = []
    for rank in range(3):
        own = host_settings(cluster.switch.address, "elastic", rank, 3) | settings
        hosts.append(Process([sys.executable, "-P", str(EXAMPLE), "--step-s", "0.1", "--steps", "200"], own))
    cluster.processes += hosts
    for host in hosts:
        host.wait_for("hosts go on from step")
    seen = operate("status", cluster.switch.address)
    assert "3 ranks" in seen
    operate("end", cluster.switch.address, "elastic", "--rank", "1", "--reason", "its fan is loud")
    stay = [host for host in hosts if host.wait() == 0]
    (out,) = (host for host in hosts if host not in stay)
    assert re.search(
        r"EndedByOperatorError: The operator .* put rank 1.* out of job 'elastic'.*its fan is loud", out.text
    )
    for host in stay:
        host.wait_for(r"HostLostError: Rank 1 can't go on in this job\. EndedByOperatorError: The operator", 1)
        host.wait_for("2 hosts go on from step", 1)
