"""Names made from a job's name have its base, to which the key belongs."""

from jax_passing import job_names


def test_names_made_from_a_jobs_name_have_its_base():
    name = job_names.of_doctor("train", "17")
    assert job_names.base(name) == "train"
    assert job_names.base(job_names.of_shard(job_names.of_devices(name), 1)) == "train"
