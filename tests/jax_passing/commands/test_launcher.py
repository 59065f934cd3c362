"""`jax-passing run` with real processes: tags, the first failure, signals, nothing left behind."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.commands.launch.child import TERMINATE_S, Child
from jax_passing.commands.launch.launcher import _culprit
from support.jobs.launching import NO_SWITCH, RUN, alive, launch, screen, start_forever
from support.switch.in_process import until

# Tests of what the hosts see.


def test_output_is_tagged_and_arguments_pass_through(script):
    ended = launch(
        *NO_SWITCH,
        "--hosts",
        "3",
        script("print('out', sys.argv[1:]); print('err', file=sys.stderr)"),
        "--x",
        "-m",
        "y",
    )
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == sorted(
        [f"[rank {rank}] out ['--x', '-m', 'y']" for rank in range(3)] + [f"[rank {rank}] err" for rank in range(3)]
    )


def test_hosts_find_their_settings(script, monkeypatch):
    """Every run is a job of its own, and a user's platforms stay."""
    names = ["RANK", "WORLD_SIZE", "SWITCH", "JOB"]
    values = f"*[os.environ['JAX_PASSING_' + n] for n in {names}]"
    show = script(f"print({values}, os.environ['JAX_NUM_CPU_DEVICES'], os.environ['JAX_PLATFORMS'])")
    monkeypatch.delenv("JAX_PLATFORMS")
    jobs = set()
    for given, platforms in (({}, "cpu"), ({"JAX_PLATFORMS": "cuda,cpu"}, "cuda,cpu")):
        shown = launch(*NO_SWITCH, "-n", "2", "--devices-per-host", "3", show, **given).stdout.splitlines()
        (job,) = {line.split()[5] for line in shown}
        assert sorted(shown) == [f"[rank {rank}] {rank} 2 127.0.0.1:9 {job} 3 {platforms}" for rank in range(2)]
        jobs.add(job)
    assert len(jobs) == 2


def test_a_key_belongs_to_a_jobs_name(script):
    show = script("print(os.environ['JAX_PASSING_JOB'])")
    key = {"JAX_PASSING_KEY_FILE": "job.key"}
    assert launch(*NO_SWITCH, "-n", "1", show, JAX_PASSING_JOB="mine", **key).stdout == "[rank 0] mine\n"
    for switch, job in (((), "mine"), (NO_SWITCH, "")):
        ended = CliRunner().invoke(cli.app, ["run", *switch, "-n", "1", show], env={"JAX_PASSING_JOB": job, **key})
        assert "Name that switch (--switch HOST:PORT) and that job (JAX_PASSING_JOB)." in str(ended.exception)


def test_modules():
    ended = launch(*NO_SWITCH, "-n", "1", "-m", "json.tool", "--help")
    assert ended.returncode == 0
    assert "[rank 0] usage:" in ended.stdout


@pytest.mark.slow  # what hosts are told: test_starting.py
def test_jax_distributed_needs_no_arguments(script):
    show = script("import jax\njax.distributed.initialize()\nprint(f'process {jax.process_index()} of 2\\n', end='')")
    ended = launch(*NO_SWITCH, "--for-jax", "--hosts", "2", show)
    assert ended.returncode == 0, ended
    assert sorted(ended.stdout.splitlines()) == [f"[rank {rank}] process {rank} of 2" for rank in range(2)]


def test_neither_switch_nor_launcher_load_jax():
    modules = "jax_passing.commands.cli, jax_passing.switch.server.serve, jax_passing.commands.launch.launcher"
    subprocess.run(
        [sys.executable, "-P", "-c", f"import sys, {modules}\nassert not sys.modules.keys() & {{'jax', 'numpy'}}"],
        check=True,
        timeout=120,
    )


# The first failure.


def test_the_first_failure_stops_all_and_comes_last(script, tmp_path):
    pids = tmp_path / "pids"
    ended = launch(
        *NO_SWITCH,
        "--hosts",
        "3",
        script(
            f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            f"while len(open({str(pids)!r}).readlines()) < 3: time.sleep(0.02)\n"
            "if rank == 1: raise ValueError('rank one is broken')\n"
            "time.sleep(100)"
        ),
    )
    assert ended.returncode == 1
    text = ended.stdout
    last = text[text.index("rank 1 failed first (exit code 1)") :]
    assert "Traceback (most recent call last)" in last
    assert last.rstrip().endswith("ValueError: rank one is broken")
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_exit_codes_and_signals_come_through(script):
    assert launch(*NO_SWITCH, script("sys.exit(7 if rank == 1 else 0)")).returncode == 7
    killed = launch(*NO_SWITCH, script("os.kill(os.getpid(), 9) if rank == 0 else time.sleep(100)"))
    assert killed.returncode == 128 + 9
    assert "rank 0 failed first (signal SIGKILL)" in killed.stdout


def test_who_ignores_sigterm_is_killed(script):
    ended = launch(  # long before rank 0 would end
        *NO_SWITCH,
        script("signal.signal(15, signal.SIG_IGN)\ntime.sleep(0.5)\nif rank: sys.exit(3)\ntime.sleep(1000)"),
    )
    assert ended.returncode == 3


def test_the_host_that_broke_is_blamed_not_those_that_lost_it():
    lost, broke = Child("rank 0", None, None, None), Child("rank 1", None, None, None)
    lost.tail.append("jax_passing.errors.HostLostError: Rank 1 left")
    broke.tail.append("ValueError: oops")
    assert _culprit([lost, broke]) is broke
    lost.tail[-1] = "jax.errors.JaxRuntimeError: ABORTED: HostLostError: Rank 1 left"
    assert _culprit([lost, broke]) is broke
    assert _culprit([lost]) is lost


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["--hosts", "65", "{script}"], "--hosts"),
        (["--switch", "nowhere", "{script}"], "HOST:PORT"),
        (["--host", "2", "{script}"], "No such option: --host (Possible options: --hosts)"),
        (["nosuch.py", "--x"], "no file {folder}/nosuch.py"),
        (["python", "{script}"], "without `python` before it"),
        (["{python}", "{script}"], "is an executable, not a script"),
        (["-m", "nosuch.module"], "no module 'nosuch', neither in {folder}"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message, script, monkeypatch, tmp_path):
    """They are refused before anything is started: nobody prints what a rank or a switch would."""
    monkeypatch.chdir(tmp_path)
    known = {"script": script(""), "folder": tmp_path, "python": sys.executable}
    ended = CliRunner().invoke(cli.app, ["run", *(one.format(**known) for one in arguments)], env={"COLUMNS": "200"})
    assert ended.exit_code != 0
    assert message.format(**known) in ended.output + str(ended.exception)
    assert "rank 0" not in ended.output


def test_options_of_python_are_given_after_two_dashes(script):
    shown = launch(*NO_SWITCH, "-n", "1", "--", "-X", "dev", script("print(sys.flags.dev_mode, sys.argv[1:])"), "-X")
    assert "[rank 0] True ['-X']\n" in shown.stdout


def test_help_tells_the_defaults():
    ended = subprocess.run([*RUN[:-1], "switch", "--help"], capture_output=True, text=True, timeout=120)
    for default in ("0.0.0.0:7171", "16384", "1024", "360", "30"):
        assert default in ended.stdout


# Signals to the launcher.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_leave_no_process_behind(script, number):
    launcher, pids = start_forever(script)
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    assert len(children) == 3  # the switch too
    launcher.send_signal(number)
    assert launcher.wait(60) == 128 + number
    launcher.stdout.close()
    until(lambda: not any(alive(pid) for pid in pids + children))


def test_after_ctrl_c_scripts_end_as_python_does_and_the_switch_says_why(script):
    waits = script(
        "import jax_passing\n"
        "jax_passing.init()\n"
        "try:\n"
        "    print('runs', flush=True)\n"
        "    time.sleep(60)\n"
        "finally:\n"
        f"    time.sleep({TERMINATE_S})\n"  # as long as ranks have that are stopped because another one failed
        "    print('saved')\n"
    )
    launcher = subprocess.Popen([*RUN, "-n", "2", waits], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begun = 0
    while begun < 2:
        line = launcher.stdout.readline()
        assert line, "the launcher has ended"
        begun += line.endswith("runs\n")
    launcher.send_signal(signal.SIGINT)
    shown = launcher.stdout.read()
    assert launcher.wait(60) == 128 + signal.SIGINT
    launcher.stdout.close()
    assert {"[rank 0] saved", "[rank 1] saved"} <= set(shown.splitlines())
    assert "it stopped with KeyboardInterrupt" in shown
    assert "killed" not in shown


def test_nobody_reads_the_output_any_more(script):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*RUN, *NO_SWITCH, script("while True: print('x', flush=True)")],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=120,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_process_that_a_script_left_behind_is_not_waited_for(script):
    leave = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    ended = launch(*NO_SWITCH, "-n", "1", script(leave))
    os.kill(int(ended.stdout.split()[-1]), signal.SIGKILL)  # it holds both pipes
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_killed_launcher_leaves_no_host_behind(script):
    launcher, pids = start_forever(script)
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        children = [int(pid) for pid in file.read().split()]
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until(lambda: not any(alive(pid) for pid in children))
    for worker in pids[1::2]:  # of the hosts; nobody could tell them
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


# Lines and progress bars.
def test_rich_bars_of_rank_0_are_drawn_on_a_terminal(script):
    bar = script(
        "from rich.progress import track\n"
        "for _ in track(range(5), description='training', disable=rank != 0): time.sleep(0.1)\n"
        "print('finished')"
    )
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    launcher = subprocess.Popen([*RUN, *NO_SWITCH, bar], stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    data = b""
    try:
        while piece := os.read(controller, 65536):
            data += piece
    except OSError:
        pass  # how the end of a terminal reads
    os.close(controller)
    assert launcher.wait(60) == 0
    shown = screen(data.decode().replace("\r\n", "\n"))
    assert sum("training" in line for line in shown) == 1
    assert any(line.startswith("[rank 0] training") and "100%" in line for line in shown), shown
    assert {"[rank 0] finished", "[rank 1] finished"} <= set(shown)


# Ranks that are started again.


def test_a_rank_that_dies_is_started_again(script, tmp_path):
    """Its lines don't begin with a rank: the session may give it another one."""
    text = f"""
tries = os.path.join({str(tmp_path)!r}, f"tries-{{rank}}")
with open(tries, "a") as file:
    file.write("x")
count = os.path.getsize(tries)
print("try", count)
if rank == 1 and count < 3:
    os.kill(os.getpid(), signal.SIGKILL) if count == 1 else sys.exit(5)
if rank == 0:
    while not os.path.exists(os.path.join({str(tmp_path)!r}, "over")):
        time.sleep(0.01)
elif count == 3:
    open(os.path.join({str(tmp_path)!r}, "over"), "w").close()
"""
    ended = launch(*NO_SWITCH, "-n", "2", "--restarts", "2", script(text))
    assert ended.returncode == 0, ended
    lines = ended.stdout.splitlines()
    assert [line for line in lines if line.startswith("[host 0] try")] == ["[host 0] try 1"]
    assert [line for line in lines if line.startswith("[host 1] try")] == [f"[host 1] try {n}" for n in (1, 2, 3)]
    assert "host 1 ended (signal SIGKILL): started again, 1 more times" in lines
    assert "host 1 ended (exit code 5): started again, 0 more times" in lines


def test_no_more_often_than_was_said(script):
    ended = launch(*NO_SWITCH, "-n", "2", "--restarts", "1", script("sys.exit(3) if rank == 1 else time.sleep(60)"))
    assert ended.returncode == 3
    assert "host 1 failed first (exit code 3)" in ended.stdout


# Other machines.
