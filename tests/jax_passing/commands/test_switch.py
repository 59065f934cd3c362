"""The switch as a process: its log."""

import logging

from jax_passing.commands.switch import PlainFormatter


def test_what_strangers_say_forges_no_line_of_the_log():
    said = "a\n2026-11-22 ERROR job 'victim' failed: forged\x1b[2J\u2028 é"
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "failed: %s", (said,), None)
    text = PlainFormatter("%(levelname)s %(message)s").format(record)
    assert text == "WARNING failed: a\\n2026-11-22 ERROR job 'victim' failed: forged\\x1b[2J\\u2028 é"
