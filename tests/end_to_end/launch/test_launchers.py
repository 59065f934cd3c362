"""Real processes with the variables that launchers set: they find their ranks and their job, and sum.

docs/operate/clusters.md has the files for each launcher; Open MPI runs for real where it is installed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.jobs.cluster import LIMIT_S, PROGRAMS, Cluster, Process, finish, free_address
from support.pages import ROOT, blocks

PAGE = ROOT / "docs" / "operate" / "clusters.md"
Launcher = Callable[[int, int], dict[str, str]]


def slurm(rank: int, hosts: int) -> dict[str, str]:
    """As `srun` sets them: one task on each node."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "1",
        "SLURM_JOB_NODELIST": f"node[1-{hosts}]",
        "SLURM_STEP_NODELIST": f"node[1-{hosts}]",
        "SLURM_NTASKS": str(hosts),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(rank),
    }


def _open_mpi(rank: int, hosts: int) -> dict[str, str]:
    names = {"SIZE": hosts, "RANK": rank, "LOCAL_SIZE": 1, "LOCAL_RANK": 0, "NODE_RANK": 0}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}


def open_mpi_4(rank: int, hosts: int) -> dict[str, str]:
    more = {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
        "OMPI_MCA_ess_base_jobid": "1531576321",
    }
    return _open_mpi(rank, hosts) | more


def open_mpi_5(rank: int, hosts: int) -> dict[str, str]:
    """In a job of Slurm's, which has started mpirun's daemons on the other nodes, and takes each of them for a process
    of the job."""
    daemons = slurm(rank - 1, hosts - 1) | {"SLURM_STEP_ID": "0"} if rank > 0 else {"SLURM_JOB_ID": "4711"}
    own = {"PMIX_NAMESPACE": "prterun-node1-4711@1", "PRTE_LAUNCHED": "1"}
    return daemons | _open_mpi(rank, hosts) | own


def start(cluster: Cluster, environments: list[dict[str, str]], *arguments: str) -> list[Process]:
    """The last rank first."""
    # Empty: not given. What the machine of the test may have of a launcher's doesn't count either.
    nothing = dict.fromkeys(("JAX_PASSING_RANK", "JAX_PASSING_WORLD_SIZE", "JAX_PASSING_JOB"), "")
    shared = nothing | {"JAX_PASSING_SWITCH": cluster.switch.address, "PYTHONHASHSEED": "0", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(PROGRAMS / "sums/ranks.py"), *arguments]
    started = [Process(command, shared | environment) for environment in reversed(environments)]
    cluster.processes += started
    return started[::-1]


def check(processes: list[Process], job: str) -> None:
    finish(processes)
    for rank, process in enumerate(processes):
        process.wait_for(rf"^rank {rank} of {len(processes)}, job {job}$", 1)


@pytest.mark.parametrize(
    ("launcher", "hosts", "job"),
    [
        (slurm, 3, "slurm-4711.1"),
        (open_mpi_4, 2, "openmpi-1531576321"),
        (open_mpi_5, 3, "openmpi-prterun-node1-4711@1"),
    ],
)
def test_ranks_are_found(cluster: Cluster, launcher: Launcher, hosts: int, job: str) -> None:
    check(start(cluster, [launcher(rank, hosts) for rank in range(hosts)]), job)


def test_jax_distributed_finds_them_first(cluster: Cluster) -> None:
    """Its coordinator is on the step's first node; after that, `init` asks nobody else."""
    port = free_address().rpartition(":")[2]
    more = {"SLURM_STEP_NODELIST": "localhost", "JAX_COORDINATOR_PORT": port}
    check(start(cluster, [slurm(rank, 2) | more for rank in range(2)], "2"), "slurm-4711.1")


def test_the_hosts_of_a_jobset(cluster: Cluster, tmp_path: Path) -> None:
    """With the variables of the manifest, and with those that Kubernetes adds. The key is made as the page says."""
    manifest = yaml.safe_load(next(block.text for block in blocks(PAGE) if block.language == "yaml"))
    (container,) = (
        job["template"]["spec"]["template"]["spec"]["containers"][0]
        for job in manifest["spec"]["replicatedJobs"]
        if job["name"] == "hosts"
    )
    given = {one["name"]: one.get("value", "") for one in container["env"]}
    secrets = next(block.text for block in blocks(PAGE) if "create secret" in block.text)
    made = "".join(line + "\n" for line in secrets.splitlines() if not line.startswith("kubectl"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True, timeout=LIMIT_S)
    switch = cluster.start_switch("127.0.0.1:0", "--key-file", str(tmp_path / "switch.key"), "--lanes-per-chunk", "336")
    environments = [
        given
        | {
            "JAX_PASSING_SWITCH": switch.address,
            "JAX_PASSING_KEY_FILE": str(tmp_path / Path(given["JAX_PASSING_KEY_FILE"]).name),
            "JAX_PASSING_RANK": str(rank),  # the field of the pod
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "JOB_COMPLETION_INDEX": str(rank),
        }
        for rank in range(int(given["JAX_PASSING_WORLD_SIZE"]))
    ]
    check(start(cluster, environments), given["JAX_PASSING_JOB"])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here (Debian: openmpi-bin)")
def test_mpirun(cluster: Cluster, tmp_path: Path) -> None:
    """The line of the page, on one machine."""
    (line,) = (block.text for block in blocks(PAGE) if "mpirun --host" in block.text)
    here = line.replace("--host node0,node1,node2 --map-by node", "-np 3 --oversubscribe")
    assert here != line
    line = here.replace("10.0.0.1:7171", f"{cluster.switch.address} -x JAX_PLATFORMS=cpu")
    shutil.copy(PROGRAMS / "sums/ranks.py", tmp_path / "train.py")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    line = line.replace("mpirun", "mpirun --allow-run-as-root")  # what the page says of containers
    started = Process(["bash", "-c", f"cd {shlex.quote(str(tmp_path))} && {line}"], {"PATH": path})
    cluster.processes.append(started)
    finish([started])
    told = re.findall(r"rank (\d) of 3, job (openmpi-\d+)", started.text)  # mpirun may mix up lines
    assert sorted(int(rank) for rank, _ in told) == [0, 1, 2], started.text
    assert len({job for _, job in told}) == 1
