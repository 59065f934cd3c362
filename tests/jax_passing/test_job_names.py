"""Names of jobs from launchers: a run has the same name on all of its hosts, or none."""

import pytest

from jax_passing import job_names

MPI = {"OMPI_COMM_WORLD_SIZE": "4"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


def found(environment, rank=0, hostname="node7", namespace="team"):
    name = job_names.found(environment, rank, hostname=lambda: hostname, namespace=lambda: namespace)
    return name and name[0]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0"}, "slurm-123.0"),
        ({"SLURM_JOB_ID": "123"}, None),  # a batch script, or a shell in an allocation
        ({"SLURM_JOB_ID": "123", "SLURM_STEP_ID": "0", "SLURM_HET_SIZE": "2"}, None),
        ({**MPI, "PMIX_NAMESPACE": "prterun-node7-4711@1"}, "openmpi-prterun-node7-4711@1"),
        ({**MPI, "OMPI_MCA_ess_base_jobid": "1531576321"}, "openmpi-1531576321"),
        (MPI, None),
        ({"PMIX_NAMESPACE": "slurm.pmix.1.0", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "slurm-1.0"),
        ({"PBS_JOBID": "123.server"}, "pbs-123.server"),
        ({"LSB_JOBID": "123", "LSB_JOBINDEX": "0"}, "lsf-123"),
        ({"LSB_JOBID": "123"}, "lsf-123"),
        ({"LSB_JOBID": "123", "LSB_JOBINDEX": "4"}, "lsf-123[4]"),
        ({**MPI, "JSM_NAMESPACE_SIZE": "4", "PMIX_NAMESPACE": "1", "LSB_JOBID": "123"}, "lsf-123"),
    ],
)
def test_launchers(environment, name):
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
    assert job_names.found({}, 0) is None
    assert job_names.found({**POD, "JOB_COMPLETION_INDEX": "-"}, 0) is None


def test_names_made_from_a_jobs_name_have_its_base():
    name = job_names.of_doctor("train", "17")
    assert job_names.base(name) == "train"
    assert job_names.base(job_names.of_shard(job_names.of_devices(name), 1)) == "train"
