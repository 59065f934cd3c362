"""All subcommands share how the command is called, its version, and what a shell completes."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from jax_passing.commands import cli

SCRIPT = [str(Path(sys.executable).with_name("jax-passing"))]
# -P: the installed package, whatever folder the tests run in.
MODULE = [sys.executable, "-P", "-m", "jax_passing"]


def output(command, **environment):
    """Returns what the command prints, with nothing in its environment but PATH."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
def test_the_version(command):
    assert output([*command, "--version"]) == f"jax-passing {version('jax-passing')}\n"


@pytest.mark.parametrize(
    ("command", "name", "completes"), [(SCRIPT, "jax-passing", True), (MODULE, "python -m jax_passing", False)]
)
def test_help_says_what_to_type(command, name, completes):
    shown = output([*command, "--help"])
    assert f"Usage: {name} [OPTIONS] COMMAND" in shown
    assert ("--install-completion" in shown) == completes  # of one word


def test_a_wrong_flag_is_told_in_plain_lines_where_no_terminal_is():
    """A journal or a file shows no boxes."""
    ended = subprocess.run([*MODULE, "switch", "--lease-s", "long"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("Error: Invalid value for '--lease-s': ")
    assert ended.stderr.isascii()


OTHERS = "bench", "conformance", "doctor", "key", "trace", "why"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("jax-passing ", {"switch", "run", "status", "drain", "end", "plan", "simulate", *OTHERS}),
        ("jax-passing sw", {"switch"}),
        ("jax-passing run --ho", {"--hosts"}),
    ],
)
def test_a_shell_completes_subcommands_and_options(words, found):
    """The shell asks the installed command like this, once --install-completion has set that up."""
    asked = {"_JAX_PASSING_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert set(output(SCRIPT, **asked).split()) == found


def test_options_have_sentences_of_help():
    for subcommand in typer.main.get_command(cli.app).commands.values():
        for parameter in subcommand.params:
            assert parameter.help, (subcommand.name, parameter.name)
            first, *_, last = parameter.help
            assert first.isupper(), parameter.help
            assert last == ".", parameter.help
            assert len(parameter.help.split()) > 3, parameter.help


def test_the_shells_setup_names_the_command():
    shown = output([*SCRIPT, "--show-completion", "bash"])
    assert "_JAX_PASSING_COMPLETE=complete_bash" in shown
    assert shown.rstrip().endswith(" jax-passing")


@pytest.mark.parametrize("option", ["--switch", "--as-parent"])
def test_an_address_that_is_none_is_named_with_its_option(option):
    addresses = {"--switch": "127.0.0.1:9"} | {option: "nowhere"}
    ended = CliRunner().invoke(cli.app, ["conformance", *(word for pair in addresses.items() for word in pair)])
    assert f"Bad value 'nowhere' of {option}: expected HOST:PORT" in str(ended.exception)


ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}  # of stdout


def printed(*arguments, **environment):
    """Returns what a command prints. It may fail, but not over its output."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    ended = subprocess.run([*MODULE, *arguments], capture_output=True, text=True, timeout=250, env=environment)
    assert "UnicodeEncodeError" not in ended.stderr
    assert not ended.stderr
    return ended.stdout


def test_a_files_name_that_is_no_text():
    """Python reads such a name from the command line as characters that no encoding has."""
    assert r"no-\udcff-file" in printed("doctor", "--key-file", b"no-\xff-file", LC_ALL="C.UTF-8")


def test_a_hosts_output_that_the_terminal_has_no_characters_for(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stdout.buffer.write('h\\u00f6rt\\n'.encode())\n")
    assert "[rank 0] h\\xf6rt\n" in printed("run", "--hosts", "1", str(script), **ASCII)
