"""Facts in which hosts must be alike: what each says, and what is said where they differ."""

import re
import subprocess
import sys

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.config import AXIS_NAMES_CHARACTERS_MAX, Settings
from jax_passing.protocol import alike, keys
from jax_passing.protocol import control_messages as messages

SAME = "install the same versions on all of them"


def test_a_hosts_facts():
    facts = alike.facts(Settings(), 0)
    assert set(facts) == {"strategy", "wire_dtype", "check_equal", "jax", "jaxlib", "jax_passing"}
    assert all(re.match(r"\d+\.\d+", facts[package]) for package in ("jax", "jaxlib", "jax_passing"))
    more = alike.facts(Settings(strategy="flat", axis_name=("d", "i")), 4)
    assert more == facts | {"strategy": "flat", "axis_name": "d,i", alike.DEVICES: "4"}
    assert alike.facts(Settings(), 0, bytes(32)) == facts | {alike.HOSTS_KEY: keys.digest(bytes(32))}
    msgspec.convert(alike.facts(Settings(axis_name=("d" * AXIS_NAMES_CHARACTERS_MAX,)), 1024), messages.Facts)


def test_facts_load_no_jax():
    program = (
        "import sys; from jax_passing import config; from jax_passing.protocol import alike; "
        "alike.facts(config.Settings(), 0); assert 'jax' not in "
    )
    subprocess.run([sys.executable, "-P", "-c", program + "sys.modules"], check=True, timeout=120)


def test_one_fact():
    versions = {0: {"jaxlib": "0.10.0"}, 1: {"jaxlib": "0.10.2"}}
    assert alike.differences("x", versions) == (
        f"Rank 1 of job 'x' has jaxlib 0.10.2, rank 0 has 0.10.0. All hosts of a job must be alike in this: {SAME}."
    )


def test_several_facts_with_one_piece_of_advice():
    versions = {0: {"jax": "1", "jaxlib": "1"}, 1: {"jax": "1", "jaxlib": "1"}, 2: {"jax": "2", "jaxlib": "2"}}
    assert alike.differences("x", versions) == (
        "Rank 2 of job 'x' has jax 2, ranks 0, 1 have 1. Rank 2 has jaxlib 2, ranks 0, 1 have 1. "
        f"All hosts of a job must be alike in these: {SAME}."
    )


def test_what_one_host_doesnt_have():
    assert "Rank 1 of job 'x' has axis_name 'd,i', rank 0 has none." in alike.differences(
        "x", {1: {"axis_name": "d,i"}, 0: {}}
    )
    assert "Rank 1 of job 'x' has no axis_name, rank 0 has d." in alike.differences("x", {0: {"axis_name": "d"}, 1: {}})
    devices = {0: {alike.DEVICES: "2"}, 5: {alike.DEVICES: "4"}}
    assert "Rank 5 of job 'x' has 4 devices, rank 0 has 2." in alike.differences("x", devices)


def test_a_fact_is_looked_at_only_while_there_is_room_for_it():
    """A stranger may give each of a thousand ranks facts of its own: all of them took a switch seconds."""
    looks = 0

    class Counted(dict):
        def get(self, *args):
            nonlocal looks
            looks += 1
            return super().get(*args)

    by_rank = {rank: Counted({f"fact {rank} {fact}": "x" for fact in range(16)}) for rank in range(1024)}
    assert len(alike.differences("x", by_rank)) > 8 * 1024
    assert looks < 256 * 1024


FACTS = st.dictionaries(st.text(min_size=1, max_size=64), st.text(max_size=256), max_size=16)


@given(st.dictionaries(st.integers(0, 1023), FACTS, min_size=1))
def test_every_difference_is_named_in_a_text_that_fits_a_message(by_rank):
    text = alike.differences("x" * 128, by_rank)
    plain = [{name: value for name, value in facts.items() if value} for facts in by_rank.values()]
    assert bool(text) == any(facts != plain[0] for facts in plain)
    msgspec.convert(messages.Refused("JoinError", text).message, messages.Text)


@given(st.dictionaries(st.integers(0, 1023), st.sampled_from(["1.0", "1.1", "1.2"]), min_size=2))
def test_rank_0s_value_and_the_highest_ranks_are_always_shown(versions):
    text = alike.differences("x", {rank: {"jax": version} for rank, version in versions.items()})
    if text:
        assert {versions[min(versions)], *versions.values()} == set(re.findall(r"1\.\d", text))
