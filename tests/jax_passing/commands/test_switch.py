"""The switch as a process: its log."""

import json
import logging
import signal
import subprocess
import sys

from jax_passing.switch.server.output import JsonFormatter, PlainFormatter

SAID = "a\n2026-11-22 ERROR job 'victim' failed: forged\x1b[2J\u2028 é"


def record(exc_info=None):
    return logging.LogRecord("x", logging.WARNING, "x.py", 1, "failed: %s", (SAID,), exc_info)


def test_what_strangers_say_forges_no_line_of_the_log():
    text = PlainFormatter("%(levelname)s %(message)s").format(record())
    assert text == "WARNING failed: a\\n2026-11-22 ERROR job 'victim' failed: forged\\x1b[2J\\u2028 é"


def test_a_log_in_json_has_an_object_in_each_line():
    try:
        raise ValueError("oops")
    except ValueError:
        text = JsonFormatter().format(record(sys.exc_info()))
    assert text.isascii()
    assert text.isprintable()  # one line
    told = json.loads(text)
    assert (told["level"], told["logger"], told["message"]) == ("WARNING", "x", f"failed: {SAID}")
    assert told["exception"].endswith("ValueError: oops")
    assert told["time"].endswith("+00:00")


def test_the_process_writes_it():
    command = [sys.executable, "-P", "-m", "jax_passing", "switch", "--listen", "127.0.0.1:0", "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        process.send_signal(signal.SIGUSR2)
        told = [json.loads(process.stderr.readline()) for _ in range(2)]
        process.terminate()
        assert process.wait(60) == 0
    assert "a switch at 127.0.0.1:" in told[0]["message"]
    assert "the key was read again" in told[1]["message"]
    assert {one["level"] for one in told} == {"INFO"}
