"""The ledger of programs: which is compared with which, and what travels."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jax_passing.host.control import programs
from jax_passing.host.control.programs import IDENTITIES_BYTES_MAX, Ledger, bounded
from jax_passing.protocol.control_messages import RELAY_BYTES_MAX
from support.host.program_infos import identity, program


def sent(info):
    """As it arrives."""
    payload = programs.encode(bounded(info))
    assert len(payload) < RELAY_BYTES_MAX
    return programs.decode(payload)


def test_equal_programs():
    ledger = Ledger(1)
    for first, second in ((ledger.own, ledger.rank_0s), (ledger.rank_0s, ledger.own)):
        assert first(bounded(program())) is None
        assert "jit_step, 2 devices (0,1), which sums ['w'] float32[3,4] at train.py:41:9 in step." in ledger.waiting()
        assert second(sent(program())) is None
        assert ledger.waiting() == ""


def test_the_kth_of_a_line_is_compared_with_the_kth():
    ledger = Ledger(3)
    for name in "abc":
        assert ledger.own(bounded(program(name=name))) is None
    assert [ledger.rank_0s(sent(program(name=name))) for name in "ab"] == [None, None]
    failure = ledger.rank_0s(sent(program(name="d")))
    assert failure.kind == "ProgramMismatchError"
    assert "Instead of rank 0's d," in failure.message
    assert "rank 3 runs c (program 3 with sums over hosts on devices 0,1)" in failure.message


def test_lines_have_no_order_between_them():
    infos = [program(name="a", devices="0"), program(name="b", devices="1"), program(name="c", devices="0-3 of 8")]
    infos.append(program(identity(stream="data"), name="d", devices="0"))
    ledger = Ledger(1)
    assert [ledger.own(bounded(info)) for info in infos] == [None] * 4
    assert [ledger.rank_0s(sent(info)) for info in reversed(infos)] == [None] * 4
    assert ledger.waiting() == ""


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=12), st.randoms(use_true_random=False))
def test_whatever_comes_first_equal_lines_agree(several, random):
    """Each line in order, lines and sides in any."""
    ledger = Ledger(1)
    left = {(side, line): [n for n, name in several if n == line] for side in range(2) for line in range(3)}
    names = {line: [name for n, name in several if n == line] for line in range(3)}
    positions = dict.fromkeys(left, 0)
    while pending := [key for key in left if positions[key] < len(left[key])]:
        side, line = random.choice(pending)
        info = program(name=names[line][positions[side, line]], devices=str(line))
        positions[side, line] += 1
        assert (ledger.own(bounded(info)) if side else ledger.rank_0s(sent(info))) is None
    assert ledger.waiting() == ""


def test_what_one_side_alone_runs_is_told_to_who_waits_for_a_sum():
    ledger = Ledger(2)
    for device in range(5):
        ledger.own(bounded(program(devices=str(device))))
    ledger.rank_0s(sent(program(devices="0,1")))
    step, sums = "jit_step, 2 devices", "which sums ['w'] float32[3,4] at train.py:41:9 in step"
    assert ledger.waiting() == (
        f"Rank 2 runs {step} (0), {sums}; {step} (1), {sums}; {step} (2), {sums}; and 2 more. So far rank 0 hasn't. "
        f"Rank 0 runs {step} (0,1), {sums}. So far rank 2 hasn't."
    )


def test_a_side_that_runs_ahead_without_end():
    ledger = Ledger(1)
    failures = [ledger.rank_0s(sent(program())) for _ in range(programs.PENDING_MAX + 1)]
    assert [bool(failure) for failure in failures] == [False] * programs.PENDING_MAX + [True]
    assert "So far rank 1 hasn't." in failures[-1].message


# Programs that are too long to be sent.


def large(odd=None, count=4000):
    places = [[f"train.py:{index}:9 in step"] for index in range(count)]
    changes = [{"place": place} for place in places]
    if odd is not None:
        changes[odd]["op"] = "max"
    return [identity(**change) for change in changes]


def test_long_programs_are_compared_whole_by_their_digests():
    info = program(*large())
    cut = sent(info)
    assert cut.digest
    assert 0 < len(cut.identities) < 4000
    ledger = Ledger(1)
    ledger.own(bounded(info))
    assert ledger.rank_0s(cut) is None


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (1000, "at train.py:1000:9 in step rank 1 sums with op max, rank 0 with sum. Give"),
        (3999, "they differ beyond the first"),  # as text, the place comes late
    ],
)
def test_long_programs_that_differ(odd, message):
    ledger = Ledger(1)
    ledger.own(bounded(program(*large(odd))))
    text = ledger.rank_0s(sent(program(*large()))).message
    assert message in text
    assert "doesn't" not in text


def test_a_long_program_beside_a_short_one():
    everything = large()
    for ours, theirs in ((everything, everything[:3]), (everything[:3], everything)):
        ledger = Ledger(1)
        ledger.own(bounded(program(*ours)))
        message = ledger.rank_0s(sent(program(*theirs))).message
        assert "sums at train.py:" in message
        assert len(message) < 8 * 1024


def test_one_sum_that_is_too_long():
    leaves = [[f"['layer {index}']", "float32[3,4]"] for index in range(20_000)]
    same, other = identity(leaves=leaves), identity(leaves=leaves[:-1])
    assert len(same) > IDENTITIES_BYTES_MAX
    assert sent(program(same)).identities == ()
    ledger = Ledger(1)
    ledger.own(bounded(program(same)))
    assert ledger.rank_0s(sent(program(same))) is None
    ledger.own(bounded(program(same)))
    assert "they differ beyond the first 0 sums" in ledger.rank_0s(sent(program(other))).message


@given(st.text(max_size=2000), st.text(max_size=6000), st.text(max_size=20_000), st.lists(st.text(), max_size=5))
def test_every_program_fits_a_message(name, devices, fingerprint, identities):
    info = program(*identities, name=name, devices=devices, fingerprint=fingerprint)
    assert sent(info) == bounded(info)


def test_the_longest_program_fits_a_message():
    longest = program("\0" * 200_000, name="\0" * 9999, devices="\0" * 9999, fingerprint="\0" * 99_999)
    assert sent(longest) == bounded(longest)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"name":"a","devices":"","fingerprint":"","identities":[1]}',
        b'{"name":"%s","devices":"","fingerprint":"","identities":[]}' % (b"a" * 1025),
        b'{"name":"a","devices":"","fingerprint":"","identities":[],"more":1}',
        b'{"name":"\xff"}',
        b'{"more":' + b"[" * 30_000,
    ],
)
def test_malformed_programs(payload):
    with pytest.raises(msgspec.DecodeError):
        programs.decode(payload)


KEYS = st.sampled_from(["leaves", "place", "call", "bucket", "op", "kind", "stream", "x"])
PLAIN = st.none() | st.integers(-9, 9) | st.text(max_size=3)
NESTED = PLAIN | st.lists(PLAIN, max_size=3) | st.lists(st.lists(PLAIN, max_size=3), max_size=3)
OBJECTS = st.dictionaries(KEYS, NESTED, max_size=5)


@given(st.lists(st.text() | (OBJECTS | NESTED).map(lambda value: msgspec.json.encode(value).decode()), max_size=4))
@example(['{"a":' + "[" * 30_000])
def test_identities_may_be_anything(identities):
    """They come over the network."""
    ledger = Ledger(1)
    theirs = programs.Program("jit_step, 2 devices", "0,1", "", tuple(identities))
    ledger.rank_0s(theirs)
    failure = ledger.own(programs.Program("jit_step, 2 devices", "0,1", "", (*theirs.identities[1:], "{}")))
    if failure is not None:
        assert len(failure.message) < 8 * 1024
