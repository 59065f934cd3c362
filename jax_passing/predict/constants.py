"""The numbers that predictions rest on: what elements take on the wire, and what processors and waits take."""

LANE_BYTES = {
    "bool": 4, "int8": 4 / 3, "int16": 8 / 3, "int32": 4, "int64": 12,
    "uint8": 4 / 3, "uint16": 8 / 3, "uint32": 4, "uint64": 12, "bfloat16": 2, "float16": 4, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element with wire dtype "full" to a switch (docs/internals/fixed_point.md): of up to 16 ranks. More of
them take more for int8 and uint8, from 129 on for bfloat16, from 258 on for int16 and uint16."""
NARROW_PARTS = {"float32": 1, "float16": 1, "bfloat16": 1, "complex64": 2}
"""How many integers of a narrow wire dtype an element has there. Other dtypes travel "full"."""
NATIVE_BYTES = {
    "bool": 4, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "bfloat16": 4, "float16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes that an element takes in `lax.psum` on CPU, which adds bfloat16 up as float32."""

# Packets. Ours: 20 bytes of header on 1,440 of lanes, and 8 bytes of exponents for each block of 256 float32. TCP's:
# 1,448 bytes of payload beside 52 of headers with timestamps. Either behind 14 bytes of Ethernet, as tbf counts.
UDP_FRAME_BYTES_PER_BYTE = (1440 + 20 + 28 + 14) / 1440
UDP_WIRE_BYTES_PER_BYTE = UDP_FRAME_BYTES_PER_BYTE * (1 + 8 / (4 * 256))
BARE_FRAME_BYTES_PER_BYTE = (20 + 28 + 14) / 1440  # of a byte whose lanes are left out
TCP_WIRE_BYTES_PER_BYTE = 1514 / 1448

# Measured on 2 cores of an AMD EPYC (Zen 5) that all hosts and the switch share: docs/reference/benchmarks.md.
# Processors, in ns of one core per KB (1024 bytes):
HOST_NS_PER_KB = 650.0  # of the sum: encode, send, receive, decode; the kernel has the most of it
IN_HOST_NS_PER_KB = 100.0  # to add one more device's buffer: docs/reference/benchmarks.md, "Fixed point"
SWITCH_NS_PER_KB = 230.0  # that it receives: to receive, add, and send its share of the result
RING_NS_PER_KB = 1300.0  # that a host sends in gloo's ring, with what steps wait for each other
# Waiting:
CALL_US = 150.0  # of a host's processor: from the call in Python to the first packet, and back from the last one
ROUND_TRIP_US = 60.0  # host, switch, host
RING_STEP_US = 400.0  # of a host's processor: one of gloo's 2(N-1) steps, mostly waking threads
RING_STALL = 1.04  # gloo's steps don't overlap altogether: the time of a large sum over that of its bytes

UNKNOWN_LINK_GBIT = 10.0  # what `auto` reckons with if no host knows its link


def lane_bytes(dtype: str, wire_dtype: str = "full") -> float:
    """Returns the bytes of an element on its way to a switch."""
    if wire_dtype == "full" or dtype not in NARROW_PARTS:
        return LANE_BYTES[dtype]
    return int(wire_dtype.removeprefix("int")) / 8 * NARROW_PARTS[dtype]
