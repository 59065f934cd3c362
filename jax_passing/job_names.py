"""A job's name. It comes from the launcher's own, where its makers document that all hosts of one run have the same.

Three kinds of jobs have a name that is made of another job's, with a mark that users' names may not have."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

DEVICES_SUFFIX = "/devices"  # of the job that devices join beside their hosts' one, with strategy "flat"
SHARD_MARK = "/shard "  # in the names that switches give to the shards of a job
DOCTOR_MARK = "/doctor "  # in those of the jobs in which `jax-passing doctor` tries a switch

Environment = Mapping[str, str]


def check(name: str) -> None:
    """Raises ValueError if it has a mark."""
    if name.endswith(DEVICES_SUFFIX):
        raise ValueError(f"expected another name: with {DEVICES_SUFFIX!r} at its end it is the devices' of a job")
    if SHARD_MARK in name:
        raise ValueError(f"expected another name: with {SHARD_MARK!r} in it, it is a shard's of a job")
    if DOCTOR_MARK in name:
        raise ValueError(f"expected another name: with {DOCTOR_MARK!r} in it, it is a doctor's trial")


def of_devices(job: str) -> str:
    return job + DEVICES_SUFFIX


def of_shard(job: str, shard: int) -> str:
    """The first shard has the job's own name."""
    return f"{job}{SHARD_MARK}{shard}" if shard else job


def of_doctor(job: str, trial: str) -> str:
    """A job of its own for each `trial`, with the key of `job`."""
    return job + DOCTOR_MARK + trial


def base(job: str) -> str:
    """The users' name of a job, whoever made another one of it: all that belongs to it has one key."""
    return job.partition(DOCTOR_MARK)[0].partition(SHARD_MARK)[0].removesuffix(DEVICES_SUFFIX)


def _open_mpi(environment: Environment) -> tuple[str, str] | None:
    """First of all: `mpirun` within another launcher's job starts some ranks itself, others over that launcher, and
    only the latter know of a step. Two of them may run in one job at once, each under an id of its own."""
    if "OMPI_COMM_WORLD_SIZE" not in environment or "JSM_NAMESPACE_SIZE" in environment:
        return None  # jsrun, LSF's, sets the former as well, but numbers its runs 1, 2 ... in every job
    for variable in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"):  # Open MPI 5; 2 to 4
        if identifier := environment.get(variable):
            return f"openmpi-{identifier}", f"variable {variable}"
    return None


def _slurm(environment: Environment) -> tuple[str, str] | None:
    """Without a step nobody knows which processes of the allocation belong together; the parts of a heterogeneous job
    have an id each."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step or "SLURM_HET_SIZE" in environment:
        return None
    return f"slurm-{job}.{step}", "variable SLURM_JOB_ID"


def _pbs(environment: Environment) -> tuple[str, str] | None:
    job = environment.get("PBS_JOBID")
    return (f"pbs-{job}", "variable PBS_JOBID") if job else None


def _lsf(environment: Environment) -> tuple[str, str] | None:
    """The elements of a job array share the id; the index is 0 outside of arrays."""
    job, index = environment.get("LSB_JOBID"), environment.get("LSB_JOBINDEX", "0")
    return (f"lsf-{job}" + (f"[{index}]" if index != "0" else ""), "variable LSB_JOBID") if job else None


def _kubernetes(environment: Environment, rank: int, hostname: str, namespace: Callable[[], str]) -> str | None:
    """A pod of an Indexed Job is called JOB-INDEX. A rank other than the index says that the run is made of several
    Jobs (of a JobSet), which have a name each."""
    index = environment.get("JOB_COMPLETION_INDEX", "")
    job, dash, suffix = hostname.partition(".")[0].rpartition("-")
    if "KUBERNETES_SERVICE_HOST" not in environment or not dash or suffix != index or index != str(rank):
        return None
    where = namespace()
    return f"kubernetes-{where}.{job}" if where else None


def _own_namespace() -> str:
    """Of this pod; empty if nobody says."""
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
    """(the job's name, who said so), or None: to guess might let two runs sum up each other's numbers.

    Args:
      environment: variables.
      rank: of this host.
      hostname: this machine's, or pod's.
      namespace: this pod's.
    """
    for launcher in (_open_mpi, _slurm, _pbs, _lsf):
        if (name := launcher(environment)) is not None:
            return name
    job = _kubernetes(environment, rank, hostname(), namespace)
    return (job, "hostname of this pod of an Indexed Job") if job else None
