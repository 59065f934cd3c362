"""The command line. A subcommand imports what it does when it runs, so that each starts fast. Only `bench` loads jax,
and only in a process that is a host."""

import io
import sys
from typing import Annotated

import typer

import jax_passing
from jax_passing.commands import conformance, doctor, key, plan, run, simulate, switch, trace, why
from jax_passing.commands.bench.command import bench
from jax_passing.commands.operate.commands import drain, end
from jax_passing.commands.status.command import status
from jax_passing.errors import PassingError

SCRIPT = "jax-passing"

app = typer.Typer(no_args_is_help=True, help="Sums over hosts for JAX, inside the network.")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jax-passing {jax_passing.__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the installed version and exit."),
    ] = False,
) -> None:
    pass


app.command()(switch.switch)
app.command(context_settings={"allow_interspersed_args": False})(run.run)  # a script has options of its own
app.command()(status)
app.command()(drain)
app.command()(end)
app.command()(why.why)
app.command()(trace.trace)
app.command()(plan.plan)
app.command()(simulate.simulate)
app.command()(bench)
app.command()(conformance.conformance)
app.command()(doctor.doctor)
app.command()(key.key)


def main(program: str = SCRIPT) -> None:
    """Runs the command line. Of our errors users see the message, not the traceback. `program`: the command's name."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name, or a host's output, may have what the terminal's encoding lacks. Python says so of stderr by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():
        app.rich_markup_mode = None  # a journal or a file takes plain lines, no boxes
    command = typer.main.get_command(app)
    if program != SCRIPT:  # a shell completes what follows one word
        command.params = [one for one in command.params if one.name not in ("install_completion", "show_completion")]
    try:
        command(prog_name=program)
    except PassingError as error:
        sys.exit(f"{SCRIPT}: {error}")
