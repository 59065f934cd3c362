"""The description of a sum as Python writes it. tests/xla_ffi/host/sums/sum_spec_test.cc reads the text in C++."""

from pathlib import Path

import pytest

from jax_passing.collective.lowering.gpu.gpu_spec import GpuSpec
from jax_passing.collective.naming.sites import Site
from jax_passing.collective.naming.source_location import SourceLocation
from jax_passing.collective.naming.sum_spec import SumSpec, beginning, values_of

EXAMPLE = Path(__file__).parents[2] / "xla_ffi" / "host" / "sums" / "sum_spec_example.h"
SPEC = SumSpec(
    ordinal=3,
    program="jit_step on 4 devices",
    site=5,
    identity='{"place":["train.py:41:9 in step"],"stream":"a=b"}',
    site_name="train.py:41:9 in step psum of bfloat16[3,4] over d",
    dtype="bfloat16",
    leaf_elements=(12, 70_000_000_000),
    member_count=8,
    local_member_count=4,
    replica_count=2,
    op="sum",
    wire_dtype="int8",
    residuals=True,
    world_size=9,
    flat=False,
    conditional=True,
    moves="scatter",
    rows_inside=6,
    rows_alone=True,
    early=True,
    root=7,
    devices="0,1,2048,2049",
)
GPU_SPEC = GpuSpec(6, 7, (-1, 2049), (10, 11), (13, 14), (15, 16))


def test_python_writes_what_cpp_reads():
    _, text = EXAMPLE.read_text().split('R"(')
    assert text.split(')";')[0] == SPEC.encode()
    gpu = EXAMPLE.parents[2] / "ffi" / "cuda" / "spec_test.cc"
    assert repr(GPU_SPEC.encode()).strip("'") in gpu.read_text()


def test_what_a_site_says_travels_by_name():
    site = Site(
        SourceLocation(("train.py:41:9 in step",)), 0, "", "passing", 1, op="max", wire_dtype="int8", residuals=True
    )
    spec = SumSpec.of(site, ordinal=3, program="jit_step", site=5)
    assert (spec.op, spec.wire_dtype, spec.residuals, spec.site) == ("max", "int8", True, 5)


def test_values_by_name():
    values = values_of(SPEC.encode())
    assert (values["identity"], values["flat"], values["residuals"]) == (SPEC.identity, "0", "1")
    assert values_of(SumSpec(0, "visited").encode())["devices"] == ""


def test_all_specs_of_a_module_begin_alike():
    assert SPEC.encode().startswith(beginning(SPEC.program, SPEC.ordinal))
    assert not SPEC.encode().startswith(beginning("jit_step on 4 device", SPEC.ordinal))


def test_a_value_has_one_line():
    with pytest.raises(AssertionError):
        SumSpec(0, "two\nlines").encode()
