"""Finds a job's name: from the launcher's id, if its documentation says that all hosts of one run have the same.

Four kinds of jobs have a name made from another job's name, with a mark that users' names may not have.
"""

import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

HOSTS_MARK = "/hosts "  # is in the names of the jobs in which sets of a job's hosts sum for JAX itself
DEVICES_SUFFIX = "/devices"  # ends the name of the job in which devices are ranks, with strategy "flat"
SHARD_MARK = "/shard "  # is in the names that switches give to the shards of a job
DOCTOR_MARK = "/doctor "  # is in the names of the jobs in which `jax-passing doctor` tries a switch

_MARKS = {
    SHARD_MARK: "the shards of a job",
    HOSTS_MARK: "sets of a job's hosts",
    DOCTOR_MARK: "the trials of jax-passing doctor",
}

HOSTS_CHARACTERS_MAX = 16

Environment = Mapping[str, str]


def check(name: str) -> None:
    """Raises ValueError if a user's name is too long, says nothing, or has one of the marks."""
    if not 1 <= len(name) <= 128 or not name.isprintable():
        raise ValueError("expected a name of 1 to 128 printable characters")
    if name.endswith(DEVICES_SUFFIX):
        raise ValueError(f"expected another name: {DEVICES_SUFFIX!r} at the end is reserved for the devices of a job")
    for mark, owner in _MARKS.items():
        if mark in name:
            raise ValueError(f"expected another name: {mark!r} is reserved for {owner}")


def of_devices(job: str) -> str:
    return job + DEVICES_SUFFIX


def of_hosts(job: str, hosts: Sequence[int]) -> str:
    """Returns the name of the job in which these ranks of `job` sum by themselves."""
    ranks = ",".join(map(str, hosts))
    if len(ranks) > HOSTS_CHARACTERS_MAX:  # names have to fit into a connection's first bytes
        ranks = hashlib.sha256(ranks.encode()).hexdigest()[:HOSTS_CHARACTERS_MAX]
    return job + HOSTS_MARK + ranks


def of_shard(job: str, shard: int) -> str:
    """Returns the name of a shard; the first one has the job's own name."""
    return f"{job}{SHARD_MARK}{shard}" if shard else job


def of_doctor(job: str, trial: str) -> str:
    """Returns the name of a doctor's job: another one for each `trial`, with the key of `job`."""
    return job + DOCTOR_MARK + trial


def base(job: str) -> str:
    """Returns the user's name from which a job's name was made: all jobs made from one name have the same key."""
    for mark in _MARKS:
        job = job.partition(mark)[0]
    return job.removesuffix(DEVICES_SUFFIX)


def _open_mpi(environment: Environment) -> tuple[str, str] | None:
    """Finds the id of an `mpirun`, which counts more than that of a launcher in whose job it runs: `mpirun` starts some
    ranks itself and others by that launcher, and only the latter know a step. Two of them may run in one job at
    once, each with an id of its own."""
    if "OMPI_COMM_WORLD_SIZE" not in environment or "JSM_NAMESPACE_SIZE" in environment:
        return None  # LSF's jsrun sets the size, too, but numbers its runs 1, 2 ... in every job
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):  # Open MPI 5; 2 to 4
        if identifier := environment.get(variable):
            return f"openmpi-{identifier}", f"variable {variable}"
    return None


def _slurm(environment: Environment) -> tuple[str, str] | None:
    """Finds the id of a step. Without a step it isn't known which processes of the allocation belong together, and each
    part of a heterogeneous job has an id of its own."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step or "SLURM_HET_SIZE" in environment:
        return None
    return f"slurm-{job}.{step}", "variable SLURM_JOB_ID"


def _pbs(environment: Environment) -> tuple[str, str] | None:
    job = environment.get("PBS_JOBID")
    return (f"pbs-{job}", "variable PBS_JOBID") if job else None


def _lsf(environment: Environment) -> tuple[str, str] | None:
    """Finds the id of a job, with the index in a job array, whose elements share the id. Outside of arrays the index
    is 0."""
    job, index = environment.get("LSB_JOBID"), environment.get("LSB_JOBINDEX", "0")
    return (f"lsf-{job}" + (f"[{index}]" if index != "0" else ""), "variable LSB_JOBID") if job else None


def _kubernetes(environment: Environment, rank: int, hostname: str, namespace: Callable[[], str]) -> str | None:
    """Finds the name of an Indexed Job, whose pods are called JOB-INDEX. If the rank isn't the index, the run consists
    of several Jobs (of a JobSet), each with a name of its own."""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    job, dash, suffix = hostname.partition(".")[0].rpartition("-")
    if "KUBERNETES_SERVICE_HOST" not in environment or not dash or suffix != index or index != str(rank):
        return None
    where = namespace()
    return f"kubernetes-{where}.{job}" if where else None


def _own_namespace() -> str:
    """Returns the namespace of this pod; empty if it isn't known."""
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except (OSError, UnicodeError):
        return ""


def found(
    environment: Environment,
    rank: int,
    *,
    hostname: Callable[[], str] = socket.gethostname,
    namespace: Callable[[], str] = _own_namespace,
) -> tuple[str, str] | None:
    """Returns (the job's name, its source), or None: with a guess, two runs might sum up each other's numbers.

    Args:
      environment: variables.
      rank: rank of this host.
      hostname: returns the name of this machine or pod.
      namespace: returns the namespace of this pod.
    """
    for launcher in (_open_mpi, _slurm, _pbs, _lsf):
        if (name := launcher(environment)) is not None:
            return name
    job = _kubernetes(environment, rank, hostname(), namespace)
    return (job, "hostname of this pod of an Indexed Job") if job else None
