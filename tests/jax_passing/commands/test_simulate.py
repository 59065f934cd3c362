"""The command prints what is predicted, and refuses what can't be."""

import json

import pytest
import typer
from typer.testing import CliRunner

from jax_passing.commands import cli
from jax_passing.errors import ConfigError


def simulate(*options):
    return CliRunner().invoke(cli.app, ["simulate", *options])


def printed(*options):
    result = simulate(*options)
    assert result.exit_code == 0, result.output
    return result.output


def test_sums_over_several_numbers_of_hosts():
    output = printed("--hosts", "8,4,8", "--link-gbit", "1")
    rows = [line.split() for line in output.splitlines() if "passing" in line or "ring " in line]
    assert [row[:-2] for row in rows] == [
        ["4", "passing", "565", "ms", "67.3", "4.00"],
        ["ring", "878", "ms", "100.4", "2.57"],
        ["8", "passing", "565", "ms", "67.3", "8.00"],
        ["ring", "1.03", "s", "117.1", "4.40"],
    ]
    assert "in-rack" not in output  # which needs racks


def test_training_as_json():
    answer = json.loads(printed("--hosts", "8", "--model", "vgg16", "--json", "--links-only"))
    by_scheme = {one["scheme"]: one for one in answer["predictions"]}
    passing, server = by_scheme["passing"], by_scheme["server"]
    assert answer["training"]["model"] == "vgg16"
    assert answer["clusters"][0]["hosts"] == 8
    assert passing["speed_up"] == pytest.approx(server["time_s"] / passing["time_s"])
    assert passing["rows_per_s"] == pytest.approx(8 * 32 / passing["time_s"])
    assert server["speed_up"] == 1.0


def test_few_options():
    command = typer.main.get_command(cli.app).commands["simulate"]
    assert len(command.params) <= 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "eight"], "numbers with commas"),
        (["--hosts", "0"], "1 to 4096"),
        (["--oversubscription", "4"], "set rack_hosts"),
        (["--model", "bert"], "no model 'bert'"),
        (["--model", "vgg16", "--tflops", "0"], "above 0 and finite"),
    ],
)
def test_bad_options_are_refused(options, said):
    result = simulate(*options)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
