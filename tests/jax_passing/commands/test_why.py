"""`jax-passing why` and `trace` read files and folders."""

import json

from jax_passing.records import files
from support.records.made import A, host, sum_of, switch


def test_sentences_and_json(run, tmp_path):
    waits = files.write(host(0, [sum_of(A, 1, "started", 3.0)], world_size=2), "a-rank0", tmp_path)
    late = files.write(host(1, world_size=2), "b-rank1", tmp_path)
    code, out = run("why", waits, late)
    assert code == 0
    assert f"Rank 0 waited for rank 1 in {A}" in out
    assert run("why", tmp_path) == (0, out)
    code, out = run("why", tmp_path, "--json")
    document = json.loads(out)
    assert (code, document["records"], document["without_record"]) == (0, [0, 1], [])
    assert document["waits"][0]["absent"] == [1]


def test_a_folder_with_records_of_several_jobs(run, tmp_path):
    files.write(host(0, [sum_of(A, 1, "started", 3.0)], written_ago_s=9.0), "a", tmp_path)
    files.write(host(0, job="other", world_size=1), "b", tmp_path)
    for job, shown in (((), "other"), (("--job", "job"), "job")):
        _, out = run("why", tmp_path, *job)
        assert out.startswith(f"Job {shown!r}, epoch 5, ")
    code, _ = run("why", tmp_path, "--job", "none")
    assert code.startswith("jax-passing: None of these records is of a host of job 'none'")


def test_what_is_no_use_is_said(run, tmp_path):
    assert run("why", tmp_path) == (f"jax-passing: There is no flight record in {str(tmp_path)!r}.", "")
    code, _ = run("why", files.write(switch([]), "switch", tmp_path))
    assert code.startswith("jax-passing: None of these records is of a host")


def test_a_trace(run, tmp_path):
    files.write(host(0, [sum_of(A, 1, "started", 3.0)], world_size=2), "a-rank0", tmp_path)
    trace = tmp_path / "trace.json"
    assert run("trace", tmp_path, "-o", trace) == (0, f"wrote {trace}: job 'job', 1 of 2 ranks\n")
    assert json.loads(trace.read_text())["otherData"]["job"] == "job"
    code, _ = run("trace", tmp_path, "-o", tmp_path / "missing" / "trace.json")
    assert code.startswith("jax-passing: Can't write ")


def test_a_record_that_lacks_something_is_said(run, tmp_path):
    for number, without in enumerate(("entries", "jax_passing")):
        record = host(0, [sum_of(A, 1, "started", 3.0)], world_size=2)
        if without == "entries":
            del record["entries"][0]["state"]
        else:
            del record["jax_passing"]["events"]
        file = files.write(record, f"a{number}", tmp_path)
        for command in ("why", "trace"):
            code, _ = run(command, file)
            assert code.startswith("jax-passing: A record isn't complete, or of another version (KeyError: ")
