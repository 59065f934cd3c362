"""Messages between switches that nobody of ours sends, for hypothesis."""

from hypothesis import strategies as st

from jax_passing.protocol import control_messages as messages

numbers = st.integers(0, 3)
ranks = st.lists(numbers, max_size=3).map(tuple)
foreign_messages = st.one_of(
    st.builds(messages.Left, ranks),
    st.builds(messages.Ask, numbers, numbers, st.integers(0, 1), numbers, st.floats(0.001, 0.01)),
    st.builds(messages.Answer, numbers, ranks, st.booleans(), st.booleans()),
    st.builds(messages.Prepare, numbers, st.sampled_from([1, 3, 64, 1 << 16]), numbers, st.booleans(), ranks),
    st.builds(messages.Prepared, numbers),
    st.builds(messages.RackMeet, numbers),
    st.builds(messages.RackMet, numbers),
    st.builds(messages.RankGone, numbers),
    st.builds(messages.Refused, st.sampled_from(["JoinError", "x"]), st.text(max_size=3), st.none() | numbers),
    st.builds(messages.Failed, st.sampled_from(["HostLostError", "x"]), st.text(max_size=3)),
    st.builds(messages.Welcome, numbers, numbers, numbers, numbers, numbers, numbers),
    st.builds(messages.GroupOffer, st.just("239.192.0.1"), st.just(7), st.just(1), st.just(1), numbers),
    st.sampled_from([messages.Bye(), messages.Heartbeat(), messages.Leave(), messages.GroupLost(), b"\xff\n"]),
)
