"""The command prints, writes and draws what is simulated, and refuses what can't be."""

import json

import pytest
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
    output = printed("--hosts", "4,8", "--link-gbit", "1", "--schemes", "passing,ring", "--baseline", "server")
    rows = [line.split() for line in output.splitlines() if "passing" in line or "ring" in line]
    assert [row[:-2] for row in rows] == [
        ["4", "passing", "565", "ms", "67.3", "4.00"],
        ["ring", "878", "ms", "100.4", "2.57"],
        ["8", "passing", "565", "ms", "67.3", "8.00"],
        ["ring", "1.03", "s", "117.1", "4.40"],
    ]
    assert "server's" not in output  # the baseline is simulated, but isn't among the schemes asked for


def test_training_as_json():
    options = ["--hosts", "8", "--model", "vgg16", "--schemes", "passing,server", "--json", "--links-only"]
    answer = json.loads(printed(*options))
    passing, server = answer["predictions"]
    assert answer["training"]["model"] == "vgg16"
    assert answer["clusters"][0]["hosts"] == 8
    assert passing["speed_up"] == pytest.approx(server["time_s"] / passing["time_s"])
    assert passing["rows_per_s"] == pytest.approx(8 * 32 / passing["time_s"])
    assert server["speed_up"] == 1.0


def test_curves(tmp_path):
    path = tmp_path / "curves.svg"
    printed("--hosts", "2,4", "--schemes", "passing,server", "--plot", str(path))
    printed("--hosts", "2,4", "--schemes", "passing", "--model", "resnet50", "--plot", str(path))
    assert "svg" in path.read_text()[:400]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts", "eight"], "numbers with commas"),
        (["--hosts", "0"], "1 to 4096"),
        (["--schemes", "rings"], "There is no scheme 'rings'"),
        (["--schemes", "tree,passing"], "can have tree. Set --rack-hosts"),
        (["--schemes", "halving-doubling", "--hosts", "6"], "can have halving-doubling"),
        (["--baseline", "none"], "There is no scheme 'none'"),
        (["--model", "bert"], "no model 'bert'"),
        (["--model", "vgg16", "--pace", "fast"], "no pace 'fast'"),
    ],
)
def test_bad_options_are_refused(options, said):
    result = simulate(*options)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
