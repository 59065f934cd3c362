"""Lines that nobody of ours sends, for hypothesis."""

import msgspec
from hypothesis import strategies as st

json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(
    ["join", "relay", "query", "heartbeat", "leave", "fail", "welcome", "rackjoin", "rankjoin", "left", "ask", ""]
)
fields = st.sampled_from(["rank", "world_size", "job", "slot", "version", "payload", "kind", "message", "ranks"])
lines = st.binary(max_size=64).map(lambda data: data.replace(b"\n", b"") + b"\n") | st.builds(
    lambda kind, rest: msgspec.json.encode({**rest, "type": kind}) + b"\n",
    kinds,
    st.dictionaries(fields, json, max_size=4),
)
