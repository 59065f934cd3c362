"""The verdicts of a switch on a packet."""

VERDICTS = (
    *("added", "complete", "resend", "duplicate", "stale", "malformed", "foreign_job", "foreign_epoch"),
    *("foreign_worker", "foreign_source", "foreign_slot", "not_contribution", "mismatch", "too_far"),
    *("forwarded", "forwarded_again", "answered"),
)
"""The names of counters of every data plane, which a switch also tells its clients. tests/conformance/test_verdicts.py
compares them with the lists in p4/types.p4, xla_ffi/ebpf/slots.h (which has no parents) and xla_ffi/switch/verdict.h
(which can tell forged packets)."""
