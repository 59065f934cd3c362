"""Ranks and names of runs from launchers, whose variables are those that the real ones have set."""

import pytest

from jax_passing import launchers
from jax_passing._compat import process
from jax_passing.errors import ConfigError

MPI = {"OMPI_COMM_WORLD_SIZE": "4"}
INTEL_MPI = {
    "PMI_RANK": "0",
    "PMI_SIZE": "3",
    "MPI_LOCALNRANKS": "1",
    "I_MPI_HYDRA_UUID": "c63f0000-9f33-c4a8-6b61-060095306767",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def found(environment, rank=0, hostname="node7", namespace="team"):
    name = launchers.run_name(environment, rank, process=9, hostname=lambda: hostname, namespace=lambda: namespace)
    return name and name[0]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0"}, "slurm-123.0"),
        ({"SLURM_JOB_ID": "123"}, None),  # a batch script, or a shell in an allocation
        ({"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0", "SLURM_HET_SIZE": "2"}, "slurm-123.0"),  # as all parts see it
        ({**MPI, "PMIX_NAMESPACE": "prterun-node7-4711@1"}, "openmpi-prterun-node7-4711@1"),
        ({**MPI, "OMPI_MCA_ess_base_jobid": "1531576321"}, "openmpi-1531576321"),
        (MPI, None),
        ({"PMIX_NAMESPACE": "slurm.pmix.1.0", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "slurm-1.0"),
        (INTEL_MPI, "impi-c63f0000-9f33-c4a8-6b61-060095306767"),
        ({**INTEL_MPI, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "impi-c63f0000-9f33-c4a8-6b61-060095306767"),
        ({"I_MPI_HYDRA_UUID": "c63f0000", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "slurm-1.0"),
        ({"TORCHELASTIC_RUN_ID": "d45fda1c", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "torchrun-d45fda1c"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),  # torchrun --master-addr, or without --rdzv-id
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "slurm-1.0"),
        ({"PBS_JOBID": "123.server"}, "pbs-123.server"),
        ({"LSB_JOBID": "123", "LSB_JOBINDEX": "0"}, "lsf-123"),
        ({"LSB_JOBID": "123"}, "lsf-123"),
        ({"LSB_JOBID": "123", "LSB_JOBINDEX": "4"}, "lsf-123[4]"),
        ({**MPI, "JSM_NAMESPACE_SIZE": "4", "PMIX_NAMESPACE": "1", "LSB_JOBID": "123"}, "lsf-123"),
    ],
)
def test_names_of_runs(environment, name):
    assert found(environment) == name


def test_the_ranks_that_mpirun_starts_itself_have_the_name_of_those_that_srun_starts():
    run = {**MPI, "PMIX_NAMESPACE": "prterun-node7-4711@1"}
    by_mpirun, by_srun = {"SLURM_JOB_ID": "123"}, {"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0"}
    assert found(run | by_mpirun) == found(run | by_srun) == found(run | {"PBS_JOBID": "5"})


def test_pods_of_an_indexed_job():
    pods = [({**POD, "JOB_COMPLETION_INDEX": str(rank)}, rank, f"my-train-{rank}") for rank in (0, 1, 12)]
    assert {found(*pod) for pod in pods} == {"kubernetes-team.my-train"}
    assert found(*pods[0], namespace="other") != found(*pods[0])
    assert found({**POD, "JOB_COMPLETION_INDEX": "0"}, 0, "train-0.pods.team.svc") == "kubernetes-team.train"


@pytest.mark.parametrize(
    ("environment", "rank", "hostname", "namespace"),
    [
        (POD, 0, "train-0", "team"),  # it isn't an Indexed Job, so the end of the name means nothing
        ({"JOB_COMPLETION_INDEX": "0"}, 0, "train-0", "team"),
        ({**POD, "JOB_COMPLETION_INDEX": "1"}, 3, "set-workers-1-1", "team"),  # a pod of the second Job of a JobSet
        ({**POD, "JOB_COMPLETION_INDEX": "0"}, 0, "node", "team"),  # the pod uses the machine's network and name
        ({**POD, "JOB_COMPLETION_INDEX": "0"}, 0, "0", "team"),
        ({**POD, "JOB_COMPLETION_INDEX": "0"}, 0, "node-7", "team"),
        ({**POD, "JOB_COMPLETION_INDEX": "0"}, 0, "train-0", ""),
    ],
)
def test_pods_whose_names_arent_sure_to_be_those_of_the_run(environment, rank, hostname, namespace):
    assert found(environment, rank, hostname, namespace) is None


def test_without_arguments_this_machine_is_asked():
    assert launchers.run_name({}, 0) is None
    assert launchers.run_name({**POD, "JOB_COMPLETION_INDEX": "-"}, 0) is None


# Ranks from launchers of MPI's, also inside of Slurm's jobs.


def task(rank, hosts, process=8):
    """The variables of a task of a step (Slurm 22.05)."""
    step = {"SLURM_JOB_ID": "6", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_LOCALID": "0"}
    return step | {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(hosts), "SLURM_TASK_PID": str(process)}


def pmi(rank, hosts, **more):
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(hosts), "PMI_FD": "5", **more}


def hydra(rank, hosts):
    """MPICH 4.0.2."""
    return pmi(rank, hosts, MPI_LOCALRANKID="0", MPI_LOCALNRANKS="2")


def open_mpi(rank, hosts):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(hosts)}


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        (open_mpi(1, 3), (1, 3)),
        (hydra(1, 3), (1, 3)),
        (pmi(1, 3), (1, 3)),  # of a launcher that we don't know
        (task(1, 3), None),  # JAX knows Slurm itself
        (task(1, 3) | pmi(1, 3, PMI_JOBID="6.0"), None),  # srun --mpi=pmi2
        (task(1, 3) | pmi(1, 3, PMI_JOBID="6.0") | open_mpi(2, 4), (2, 4)),
        (task(1, 2) | hydra(2, 4), (2, 4)),  # mpiexec has started its proxies by srun, which runs two tasks
        (task(1, 2) | hydra(2, 4) | {"PMI_JOBID": "6.0"}, (2, 4)),  # whose step is one of --mpi=pmi2
        (task(0, 1, process=9) | hydra(1, 2), None),  # mpiexec runs srun, which has started this process
        (task(0, 1, process=9) | open_mpi(1, 2), None),
        ({"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"} | hydra(2, 3), (2, 3)),  # without any step
        (open_mpi(1, 3) | hydra(1, 3), (1, 3)),
        ({"PMI_RANK": "", "PMI_SIZE": "3"}, None),
        ({"PMI_RANK": "-1", "PMI_SIZE": "3"}, None),
    ],
)
def test_the_inner_launcher_gives_the_rank(environment, rank):
    given = launchers.rank_of_mpi(environment, process=9)
    assert (given and given[:2]) == rank


def test_an_agent_of_torchrun_gives_its_processes_their_ranks():
    """torch 2.13."""
    told = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1"}
    for agent in ({}, task(1, 2), open_mpi(1, 2)):
        assert launchers.rank_of_torchrun(told | agent, process=9)[:2] == (3, 4)
    assert launchers.rank_of_torchrun(told | task(0, 2, process=9), process=9) is None  # a process of it runs srun
    assert launchers.rank_of_torchrun({"RANK": "3", "WORLD_SIZE": "4"}) is None  # whoever has set these


def test_kubeflow_gives_pods_their_ranks(monkeypatch):
    """Trainer 2.1."""
    told = {"JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "run-node-0-0.run:6666"}
    assert launchers.rank_of_platform(told) == (3, 4, "variable JAX_PROCESS_ID")
    assert launchers.rank_of_platform({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "3"}) is None
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert process.in_cluster() == (3, 4, "variable JAX_PROCESS_ID")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert process.in_cluster()[:2] == (1, 2)  # of an mpirun inside of them


def test_skypilot_gives_nodes_their_ranks():
    """SkyPilot 0.14.1, on a cluster of Slurm's, whose variables of a step it unsets."""
    told = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_TASK_ID": "sky-2026-12-01_a-4"}
    told |= {"SLURM_JOB_ID": "6"}
    assert launchers.rank_of_platform(told) == (1, 2, "variable SKYPILOT_NODE_RANK")
    assert launchers.run_name(told, 1) == ("skypilot-sky-2026-12-01_a-4", "variable SKYPILOT_TASK_ID")
    assert launchers.run_name(told | hydra(3, 4), 3) is None  # an mpiexec inside of the task, of perhaps several


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (open_mpi(1, 3) | hydra(0, 2), r"rank 1 of 3 \(variable OMPI_COMM_WORLD_RANK\), and rank 0 of 2 .*PMI_RANK"),
        (task(1, 3) | pmi(0, 2), r"rank 1 of 3 \(variable SLURM_PROCID\), and rank 0 of 2 \(variable PMI_RANK\)"),
        (task(1, 2) | {"PMI_PORT": "node1:45351", "PMI_ID": "3"}, "-pmi-port"),
    ],
)
def test_launchers_that_contradict_each_other_are_named(environment, message):
    with pytest.raises(ConfigError, match=f"{message}.*JAX_PASSING_RANK and JAX_PASSING_WORLD_SIZE"):
        launchers.rank_of_mpi(environment, process=9)


def test_a_run_of_hydra_has_no_name_in_a_step_that_others_may_share():
    assert found(task(1, 2) | hydra(2, 4)) is None
    assert found(task(1, 2) | pmi(1, 2, PMI_JOBID="6.0")) == "slurm-6.0"
    assert found(task(1, 2, process=9) | hydra(2, 4) | open_mpi(2, 4)) == "slurm-6.0"
    assert found(hydra(2, 4) | {"PBS_JOBID": "5"}) == "pbs-5"


def test_advice_names_srun_where_slurm_is():
    batch = {"SLURM_JOB_ID": "6"}
    assert "`jax-passing run`" in launchers.advice({})
    assert "`srun python ...`" in launchers.advice(batch)
    assert "--ntasks=HOSTS" in launchers.advice(batch | {"SLURM_STEP_ID": "0"})
