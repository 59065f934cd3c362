"""Handshakes that come to nothing are counted by address, and some of them forgiven every second."""

from jax_passing.protocol import handshakes
from jax_passing.protocol.handshakes import Handshakes


def test_an_address_has_so_many_at_once_and_then_a_few_a_second():
    limit = Handshakes(per_address=3)
    assert [limit.begin("a", 5.0) for _ in range(4)] == [True, True, True, False]
    assert limit.begin("b", 5.0)
    assert limit.begin("a", 5.0 + 1 / handshakes.HANDSHAKES_PER_S)
    assert not limit.begin("a", 5.0 + 1 / handshakes.HANDSHAKES_PER_S)
    limit.succeeded("a", 5.0 + 1 / handshakes.HANDSHAKES_PER_S)
    assert limit.begin("a", 5.0 + 1 / handshakes.HANDSHAKES_PER_S)


def test_of_how_many_addresses_handshakes_are_remembered():
    limit = Handshakes(per_address=64)
    for number in range(3 * handshakes.ADDRESSES_MAX):
        assert limit.begin(str(number), number / 1000)
        assert len(limit._counts) <= handshakes.ADDRESSES_MAX
