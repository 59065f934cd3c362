"""`jax-passing status` at a switch whose hosts are in this process."""

import json
import re
import time

from jax_passing.protocol import keys
from jax_passing.switch.status.report import AGAIN_S
from support.keys import write_key
from support.switch.in_process import SwitchThread, members


def close(several):
    for member in several:
        member.leave()
    for member in several:
        member.await_others(time.monotonic() + 20)
        member.close()


def test_a_job_on_two_switches_on_one_screen(run):
    switches = [SwitchThread(), SwitchThread()]
    address = ",".join(one.address for one in switches)
    several = members(type("Both", (), {"address": address}), 2)
    code, out = run("status", address)
    close(several)
    assert code == 0
    about = r"^switch 127\.0\.0\.1:\d+: jax-passing \S+, software, up \S+ s, no key, 1024 of 16384 slots used"
    assert len(re.findall(about, out, re.M)) == 2
    assert re.search(r"job test: running for \S+ s, epochs \d+, \d+, 2 ranks, at 2 switches", out)
    assert "0 chunks, 0 resends" in out
    for rank in range(2):
        assert re.search(rf"^ +{rank} +\S+ +127\.0\.0\.1 +0%", out, re.M)
    time.sleep(AGAIN_S)
    code, out = run("status", address, "--json")
    assert code == 0
    (end, *_) = json.loads(out)["ended"]
    assert (end["job"].partition("/")[0], end["why"]) == ("test", "all ranks have left")
    for one in switches:
        one.stop()


def test_a_switch_that_isnt_there(run):
    code, out = run("status", "127.0.0.1:1")
    assert code == 1
    assert out.startswith("No switch answered at 127.0.0.1:1 (connection refused: nothing listens there). Is one ")


def test_without_a_switch_it_says_how(run):
    code, _ = run("status")
    assert code == "jax-passing: No switch is given: jax-passing status HOST:PORT, or JAX_PASSING_SWITCH."


def test_a_switch_with_a_key_shows_a_job_to_its_owners_and_all_to_its_operator(run, tmp_path):
    of_switch = keys.new_key()
    operator = write_key(tmp_path / "switch.key", keys.SWITCH, of_switch)
    owner = write_key(tmp_path / "job.key", keys.JOB, keys.job_key(of_switch, "test"))
    switch = SwitchThread(key_file=operator)
    several = members(switch, 2, key=keys.job_key(of_switch, "test"))
    others = members(switch, 1, key=keys.job_key(of_switch, "other"), job="other")

    def jobs(*arguments):
        code, out = run("status", switch.address, "--json", *arguments)
        assert code == 0, out
        seen = json.loads(out)
        return [job["job"] for job in seen["jobs"]], seen["packets"][switch.address] is not None

    assert jobs("--key-file", operator) == (["other", "test"], True)
    assert jobs("--key-file", owner, "--job", "test") == (["test"], False)
    for arguments, problem in (
        ((), "wants a key. Give the switch's own key"),
        (("--key-file", owner, "--job", "other"), "has another key than this one, or none"),
    ):
        code, out = run("status", switch.address, *arguments)
        assert (code, problem in " ".join(out.split())) == (1, True), out
    code, _ = run("status", switch.address, "--key-file", owner)
    assert "has the key of a job: say of which one (--job)" in code
    close(several + others)
    switch.stop()
