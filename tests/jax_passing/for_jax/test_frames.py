"""Frames come out as they went in, whatever the pieces; what is none is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_passing.for_jax import frames
from jax_passing.for_jax.frames import (
    BYTES_MAX,
    HEADER_BYTES,
    SHORT_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    decode,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KINDS = st.sampled_from([Kind.HELLO, Kind.GRANT, Kind.TAKEN])
PLAIN = st.builds(Frame, KINDS, U64, U64, U32, U32, st.integers(-(2**31), 2**31 - 1), st.just(0))
SIZED = st.builds(lambda size: Frame(Kind.LONG, 1, size_bytes=size), st.integers(0, BYTES_MAX))
WITH_BYTES = st.tuples(st.sampled_from([Kind.SHORT, Kind.DATA]), st.binary(max_size=300))


class Heard:
    """A reader is kept here with what it has heard."""

    def __init__(self):
        self.frames, self._memory = [], memoryview(b"")
        self.reader = FrameReader(self.memory_for, self.heard)

    def memory_for(self, frame):
        self._memory = memoryview(bytearray(frame.size_bytes))
        return self._memory

    def heard(self, frame):
        self.frames.append((frame, bytes(self._memory) if frame.payload_bytes else b""))

    def take(self, come):
        while come:
            buffer = self.reader.buffer()
            count = min(len(buffer), len(come))
            assert count
            buffer[:count] = come[:count]
            self.reader.filled(count)
            come = come[count:]


def encoded(content):
    frame, data = content if isinstance(content[1], bytes) else (content, b"")
    frame = Frame(frame, 7, size_bytes=len(data)) if isinstance(frame, Kind) else frame
    return (frame, data), frame.encode() + data


@given(st.lists(PLAIN | SIZED | WITH_BYTES, max_size=8), st.lists(st.integers(1, 200), min_size=1))
def test_frames_dont_depend_on_the_pieces(contents, sizes):
    expected, texts = zip(*map(encoded, contents), strict=True) if contents else ((), ())
    sent, heard, at = b"".join(texts), Heard(), 0
    while at < len(sent):
        size = sizes[at % len(sizes)]
        heard.take(sent[at : at + size])
        at += size
    assert heard.frames == list(expected)


def test_long_bytes_are_received_where_they_belong():
    heard = Heard()
    heard.take(Frame(Kind.DATA, 1, size_bytes=1 << 20).encode() + b"x" * 100)
    buffer = heard.reader.buffer()
    assert len(buffer) == (1 << 20) - 100
    assert buffer.obj is heard._memory.obj


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n"[:HEADER_BYTES],
        bytes(HEADER_BYTES),
        Frame(Kind.SHORT, size_bytes=SHORT_BYTES + 1).encode(),
        Frame(Kind.LONG, size_bytes=BYTES_MAX + 1).encode(),
        Frame(Kind.HELLO, size_bytes=1).encode(),
        Frame(99).encode(),
        Frame(Kind.HELLO).encode()[:36] + b"\1\0\0\0" + bytes(8),
    ],
    ids=["HTTP", "zeros", "a long short one", "too long", "bytes where none belong", "unknown kind", "reserved bits"],
)
def test_what_is_no_frame_is_refused(header):
    with pytest.raises(FrameError):
        decode(header)
    with pytest.raises(FrameError):
        Heard().take(header)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(come):
    heard = Heard()
    try:
        heard.take(come)
    except FrameError:
        assert len(come) >= HEADER_BYTES


def test_a_reader_that_has_stopped_touches_no_memory():
    heard = Heard()
    heard.take(Frame(Kind.DATA, 1, size_bytes=100).encode() + b"x" * 10)
    buffer = heard.reader.buffer()
    heard.reader.stop()
    heard.take(b"y" * 300)
    assert bytes(heard._memory) == b"x" * 10 + bytes(90)
    assert heard.frames == []
    assert len(heard.reader.buffer()) == frames.SCRATCH_BYTES
    assert len(buffer) == 90
