"""Launchers tell each process by variables which rank it has, and which run it is part of.

One launcher may start another, and the outer one's variables stay in the environment. The inner one counts: the one
that has started this process.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from jax_passing.errors import ConfigError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Environment = Mapping[str, str]


class Rank(NamedTuple):
    """A launcher says that this process is `rank` of `world_size`. `source`: where it says so, for messages."""

    rank: int
    world_size: int
    source: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"


def rank_of_ray() -> Rank | None:
    """Returns what Ray Train says of this process, if that is one of its workers. Ray itself is never imported: a
    worker has it. It sets no variables, and starts workers from agents that another launcher may have started."""
    if (train := sys.modules.get("ray.train")) is None:
        return None
    try:
        context = train.get_context()
        return Rank(int(context.get_world_rank()), int(context.get_world_size()), "Ray Train's context")
    except (AttributeError, RuntimeError, TypeError):  # a process that isn't a worker: a driver, an actor
        return None


def is_actor_of_ray() -> bool:
    """Tells whether this process is an actor of Ray's, which doesn't tell it how many others do the same."""
    ray = sys.modules.get("ray")
    try:
        return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    except (AttributeError, RuntimeError):
        return False


def rank_of_torchrun(environment: Environment, process: int | None = None) -> Rank | None:
    """Returns what PyTorch's launcher says, if it has started this process. It runs one agent on each machine, which
    Slurm or `mpirun` may have started: their variables tell the agents apart, not the processes.

    Args:
      environment: variables.
      process: id of this process; by default that is asked for.
    """
    if "TORCHELASTIC_RUN_ID" not in environment or _is_task_of_slurm(environment, process):
        return None
    return _rank(environment, "RANK", "WORLD_SIZE")


def rank_of_platform(environment: Environment) -> Rank | None:
    """Returns what Kubeflow Trainer's runtime for JAX says (its plugin `jax`, since version 2.1), or SkyPilot, which
    takes Slurm's variables of a step away from what it starts there (0.14.1). JAX itself reads no variable of these.
    Whatever starts processes inside of a pod or node counts more."""
    kubeflow = _rank(environment, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    return kubeflow or _rank(environment, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")


def rank_of_mpi(environment: Environment, process: int | None = None) -> Rank | None:
    """Returns what a launcher of MPI's says, if one has started this process: `mpirun` of Open MPI, or `mpiexec` of
    MPICH and of what is built on it, which speaks PMI.

    JAX asks for another variable of Open MPI's, which version 5 doesn't set, and for none of PMI's. Inside a job of
    Slurm's it takes the processes by which these launchers reach the other machines for the job's.

    Args:
      environment: variables.
      process: id of this process; by default that is asked for.

    Raises:
      ConfigError: launchers contradict each other, and nothing tells which of them is the inner one.
    """
    if _is_task_of_slurm(environment, process):
        return None
    slurm = _rank(environment, "SLURM_PROCID", "SLURM_NTASKS") if "SLURM_STEP_ID" in environment else None
    open_mpi = _rank(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    pmi = _rank_of_pmi(environment, slurm)
    if open_mpi is not None and pmi is not None and open_mpi[:2] != pmi[:2]:
        raise _contradiction(open_mpi, pmi)
    return open_mpi or pmi


def _rank(environment: Environment, rank: str, world_size: str) -> Rank | None:
    own, hosts = environment.get(rank, ""), environment.get(world_size, "")
    return Rank(int(own), int(hosts), f"variable {rank}") if own.isdecimal() and hosts.isdecimal() else None


def _is_task_of_slurm(environment: Environment, process: int | None) -> bool:
    """Tells whether Slurm itself has started this process: then variables of MPI's are of launchers around Slurm."""
    task = environment.get("SLURM_TASK_PID") if "SLURM_STEP_ID" in environment else None
    return task == str(os.getpid() if process is None else process)


def _is_of_hydra(environment: Environment) -> bool:
    """Tells whether MPICH's launcher has set the variables of PMI, which Slurm sets for its own tasks, too."""
    return "PMI_RANK" in environment and "MPI_LOCALNRANKS" in environment


def _rank_of_pmi(environment: Environment, slurm: Rank | None) -> Rank | None:
    """Reads PMI's variables, unless they are Slurm's own, as with `srun --mpi=pmi2`."""
    pmi = _rank(environment, "PMI_RANK", "PMI_SIZE")
    if pmi is None:
        if "PMI_PORT" in environment and "PMI_ID" in environment:
            raise ConfigError(
                "mpiexec has started this process with -pmi-port, and so tells it no number of processes. Leave that "
                "option out, or set JAX_PASSING_RANK and JAX_PASSING_WORLD_SIZE in each process."
            )
        return None
    if slurm is None or _is_of_hydra(environment):
        return pmi
    if slurm[:2] != pmi[:2]:
        raise _contradiction(slurm, pmi)
    return None


def _contradiction(one: Rank, other: Rank) -> ConfigError:
    return ConfigError(
        f"Two launchers contradict each other: this process is {one}, and {other}. Start it with one of them, unset "
        "the variables of the other, or set JAX_PASSING_RANK and JAX_PASSING_WORLD_SIZE in each process."
    )


def advice(environment: Environment) -> str:
    """Says how to start the processes, where nothing gives their ranks, or there is only one."""
    if not (job := environment.get("SLURM_JOB_ID")):
        return "Start a process for each host with `jax-passing run`, or with a launcher"
    if not environment.get("SLURM_STEP_ID"):
        return f"Slurm's job {job} runs it, but `srun` hasn't started it: write `srun python ...`"
    return "Give Slurm's step a task for each host: `srun --ntasks=HOSTS python ...`"


# Names of runs: two runs under one name would sum up each other's numbers.


def _torchrun(environment: Environment) -> tuple[str, str] | None:
    """Finds the id on which all agents of a run agree. It is "none" for all runs that nobody has given one, and for
    agents that are told the address of the first one instead."""
    identifier = environment.get("TORCHELASTIC_RUN_ID", "none")
    return (f"torchrun-{identifier}", "variable TORCHELASTIC_RUN_ID") if identifier != "none" else None


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


def _intel_mpi(environment: Environment) -> tuple[str, str] | None:
    """Finds the id that Intel's hydra makes anew for each run, and gives to all its processes; libfabric's providers
    for Omni-Path take it for the job's, too."""
    identifier = environment.get("I_MPI_HYDRA_UUID") if _is_of_hydra(environment) else None
    return (f"impi-{identifier}", "variable I_MPI_HYDRA_UUID") if identifier else None


def _slurm(environment: Environment) -> tuple[str, str] | None:
    """Finds the id of a step. Without a step it isn't known which processes of the allocation belong together. All
    parts of a heterogeneous job see the job of its leader, which also counts the steps of all of them."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    return (f"slurm-{job}.{step}", "variable SLURM_JOB_ID") if job and step else None


def _pbs(environment: Environment) -> tuple[str, str] | None:
    job = environment.get("PBS_JOBID")
    return (f"pbs-{job}", "variable PBS_JOBID") if job else None


def _lsf(environment: Environment) -> tuple[str, str] | None:
    """Finds the id of a job, with the index in a job array, whose elements share the id. Outside of arrays the index
    is 0."""
    job, index = environment.get("LSB_JOBID"), environment.get("LSB_JOBINDEX", "0")
    return (f"lsf-{job}" + (f"[{index}]" if index != "0" else ""), "variable LSB_JOBID") if job else None


def _skypilot(environment: Environment, rank: int) -> str | None:
    """Finds the id of a task, which a managed job keeps when it is recovered. A rank that isn't the node's belongs to a
    run inside of the task, of which there may be several."""
    task = environment.get("SKYPILOT_TASK_ID")
    return task if task and environment.get("SKYPILOT_NODE_RANK") == str(rank) else None


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


def run_name(
    environment: Environment,
    rank: int,
    *,
    process: int | None = None,
    hostname: Callable[[], str] = socket.gethostname,
    namespace: Callable[[], str] = _own_namespace,
) -> tuple[str, str] | None:
    """Returns (the name of this run, its source) from the launcher's id, if its documentation says that all hosts of
    one run have the same; else None: with a guess, two runs might sum up each other's numbers.

    Args:
      environment: variables.
      rank: rank of this host.
      process: id of this process; by default that is asked for.
      hostname: returns the name of this machine or pod.
      namespace: returns the namespace of this pod.
    """
    if _is_task_of_slurm(environment, process):
        return _slurm(environment)
    # Several runs of MPICH's launcher may share a step, and have no ids of their own.
    by_slurm = () if _is_of_hydra(environment) else (_slurm,)
    for launcher in (_torchrun, _open_mpi, _intel_mpi, *by_slurm, _pbs, _lsf):
        if (name := launcher(environment)) is not None:
            return name
    if task := _skypilot(environment, rank):
        return f"skypilot-{task}", "variable SKYPILOT_TASK_ID"
    job = _kubernetes(environment, rank, hostname(), namespace)
    return (job, "hostname of this pod of an Indexed Job") if job else None
