"""The jobs in the manifests of docs/operate/clusters.md fit the schemas of Kubernetes. JobSet's own kind isn't among
them, and isn't checked here."""

import pytest
import yaml

from support.pages import blocks, page

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate isn't installed: `tests/check.sh clusters` does that"
)

MANIFESTS = [yaml.safe_load(block.text) for block in blocks(page("clusters.md")) if block.language == "yaml"]
JOBS = [job for one in MANIFESTS for job in (one["spec"]["replicatedJobs"] if isinstance(one, dict) else one)]
VERSIONS = ("1.29", "1.37")  # an older one, and the newest that has schemas here


def job_of(replicated):
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}, **replicated["template"]}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("replicated", JOBS, ids=lambda job: f"{job['name']}-{job['replicas']}")
def test_jobs(replicated, version):
    kubernetes_validate.validate(job_of(replicated), version, strict=True)


def test_a_wrong_key_is_found():
    job = job_of(JOBS[0])
    job["spec"] = {**job["spec"], "completion": 1}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)
