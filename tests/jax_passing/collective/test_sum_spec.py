"""The description of a sum, as Python writes it. tests/xla_ffi/ffi/sum_spec_test.cc reads the same text in C++."""

from pathlib import Path

import pytest

from jax_passing.collective.naming.sum_spec import SumSpec, beginning, values_of

EXAMPLE = Path(__file__).parents[2] / "xla_ffi" / "ffi" / "sum_spec_example.h"
SPEC = SumSpec(
    ordinal=3,
    program="jit_step on 4 devices",
    site=5,
    identity='{"place":["train.py:41:9 in step"],"stream":"a=b"}',
    site_name="train.py:41:9 in step psum of bfloat16[3,4] over d",
    dtype="bfloat16",
    op="sum",
    wire="int8",
    leaf_elements=(12, 70_000_000_000),
    member_count=8,
    local_member_count=4,
    replica_count=2,
    world_size=9,
    flat=False,
    conditional=True,
    devices="0,1,2048,2049",
    on_gpu=True,
    overlap_group=6,
    slice_elements=7,
    residuals=True,
    gpus=(-1, 2049),
    gpu_groups=(10, 11),
    gpu_members=(13, 14),
    gpu_slices=(15, 16),
)


def test_python_writes_what_cpp_reads():
    _, text = EXAMPLE.read_text().split('R"(')
    assert text.split(')";')[0] == SPEC.encode()


def test_values_by_name():
    values = values_of(SPEC.encode())
    assert (values["identity"], values["flat"], values["gpus"]) == (SPEC.identity, "0", "-1,2049")
    assert values_of(SumSpec(0, "visited").encode())["gpus"] == ""


def test_all_specs_of_a_module_begin_alike():
    assert SPEC.encode().startswith(beginning(SPEC.program, SPEC.ordinal))
    assert not SPEC.encode().startswith(beginning("jit_step on 4 device", SPEC.ordinal))


def test_a_value_has_one_line():
    with pytest.raises(AssertionError):
        SumSpec(0, "two\nlines").encode()
