"""How the GPUs of a host add up before the sum over the hosts. No GPU is needed for what is lowered."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.lowering.gpu import in_host, start_and_done
from jax_passing.collective.lowering.placement import place
from support.jax.lowered_sums import LAYERS, calls, layers, lowered, mapped, names, numbers

pytestmark = pytest.mark.usefixtures("session")


@pytest.fixture
def worth(monkeypatch):
    """The devices of a host add up sums of any size before."""
    monkeypatch.setattr(in_host, "WORTH_BYTES", 0)


def is_over(operation, axes, groups):
    """Newer versions of JAX write the mesh's axes for the groups of devices."""
    named = re.findall(r'axis_ref<name = "(\w+)"', operation)
    listed = f"replica_groups = dense<{groups}> : tensor<{len(groups)}x{len(groups[0])}xi64>"
    return named == list(axes) if named else listed in operation


def tensor(shape, dtype):
    return f"tensor<{shape}x{dtype}>"


@pytest.mark.parametrize(
    ("dtype", "moved", "wide"),
    [("float32", "f32", "f32"), ("bfloat16", "ui16", "f32"), ("float16", "ui16", "f32"), ("int8", "i8", "i8")],
)
def test_devices_add_up_first(worth, dtype, moved, wide):
    def program(x):
        return jax_passing.psum([x, x[0, :2]], "d")

    text = lowered(mapped(program), jnp.ones((8, 5), dtype))
    ((start, (_, slice_), spec, aliases),) = calls(text, "passing_psum")
    ((done, (_, _, under_way), _, _),) = calls(text, "passing_psum_done")
    # Seven elements of each device, on eight of them one each.
    assert (spec["slice_elements"], spec["leaf_elements"]) == ("1", "2,5")
    assert numbers(spec["slices"]) == list(range(8))
    assert (spec["local_member_count"], spec["dtype"]) == ("8", dtype)
    assert aliases == [("1", "1")]
    assert under_way == f"%{start}#1"
    (scattered,) = re.findall(r"stablehlo\.all_to_all\"?.*", text)
    assert is_over(scattered, "d", [list(range(8))])
    assert scattered.endswith(f"({tensor('8x1', moved)}) -> {tensor('8x1', moved)}")
    (gathered,) = re.findall(r"stablehlo\.all_gather\"?.*", text)
    assert is_over(gathered, "d", [list(range(8))])
    assert gathered.endswith(f"({tensor(1, moved)}) -> {tensor(8, moved)}")
    added = [line for line in text.splitlines() if re.search(rf"stablehlo\.add .*: {tensor(1, wide)}", line)]
    assert len(added) == 7
    for one, next_one in itertools.pairwise(added):  # each to the sum of those before
        assert f"stablehlo.add {one.split()[0]}," in next_one
    assert slice_ == added[-1].split()[0]
    assert text.index("all_to_all") < text.index(added[0]) < text.index("@passing_psum(")
    assert text.index(f"%{done} = ") < text.index("all_gather")


def test_complex_numbers_are_two_each(worth):
    ((_, _, spec, _),) = calls(
        lowered(mapped(lambda x: jax_passing.psum(x, "d")), jnp.ones((8, 3), np.complex64)), "passing_psum"
    )
    assert (spec["dtype"], spec["leaf_elements"], spec["slice_elements"]) == ("float32", "6", "1")


def test_held_sums_of_slices_are_awaited_behind_the_backward_pass(worth):
    text = lowered(*layers())
    lines = text.splitlines()

    def lines_with(pattern):
        return [i for i, line in enumerate(lines) if re.search(pattern, line)]

    assert len(lines_with(r"all_to_all")) == len(lines_with(r"all_gather")) == LAYERS
    starts, dones = lines_with(r"@passing_psum\("), lines_with(r"@passing_psum_done\(")
    assert max(lines_with(r"all_to_all")) < max(starts) < min(dones) < min(lines_with(r"all_gather"))
    assert max(lines_with(r"stablehlo\.dot_general")) < min(dones)
    gates = {f"%{result}" for result, _, _, aliases in calls(text, "passing_hold") if not aliases}
    assert {gate for _, (_, gate, _), _, _ in calls(text, "passing_psum_done")} == gates
    assert len(gates) == LAYERS


@pytest.mark.parametrize("work", [0, 3])
def test_names_are_those_of_hosts_that_add_up_themselves(worth, work):
    there = lowered(*layers(), platform="cpu")
    here = lowered(*layers(work))
    assert "all_to_all" in here
    assert "all_to_all" not in there
    assert names(here) == names(there)


def test_devices_of_a_group_add_up(worth):
    for axes, groups in (("d", [[0, 4], [1, 5], [2, 6], [3, 7]]), (("m", "d"), [[0, 4, 1, 5, 2, 6, 3, 7]])):

        def total(x, axes=axes):
            return jax_passing.psum(x, axes)

        text = lowered(mapped(total, (2, 4), ("d", "m"), in_specs=P("d", "m")), jnp.ones((4, 4)))
        ((_, _, spec, _),) = calls(text, "passing_psum")
        assert is_over(re.findall(r"all_to_all.*", text)[0], axes, groups)
        for group in groups:
            assert [numbers(spec["slices"])[device] for device in group] == list(range(len(group)))


def test_where_the_host_adds_up(monkeypatch):
    def adds_up(f, *arguments):
        ((_, _, spec, _),) = calls(text := lowered(f, *arguments), "passing_psum")
        assert ("all_to_all" in text) == (spec["slice_elements"] != "0")
        return spec["slice_elements"] == "0"

    def total(x):
        return jax_passing.psum(x, "d")

    def floats(mebibytes, dtype=np.float32, devices=8):
        return jax.ShapeDtypeStruct((devices, int(mebibytes * (1 << 20)) // np.dtype(dtype).itemsize), dtype)

    assert adds_up(mapped(total), floats(1))
    assert not adds_up(mapped(total), floats(1.25))
    assert not adds_up(mapped(total), floats(25))  # a whole bucket, unless psum is told otherwise
    assert not adds_up(mapped(total), floats(30))
    assert adds_up(mapped(total), floats(31))
    assert not adds_up(mapped(total), floats(25, jnp.bfloat16))
    # A float32 for each bfloat16: two devices are spared nothing.
    assert adds_up(mapped(total, (2,)), floats(10, jnp.bfloat16, 2))
    assert not adds_up(mapped(total, (2,)), floats(10, devices=2))
    monkeypatch.setattr(in_host, "WORTH_BYTES", 0)
    assert adds_up(mapped(lambda x: jax.lax.cond(x[0, 0] > 0, total, lambda x: x, x)), floats(1))
    assert adds_up(mapped(total, (1,)), floats(1))
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    options = {"in_specs": P("d"), "out_specs": P(), "axis_names": {"d"}, "check_vma": False}
    assert adds_up(jax.shard_map(total, mesh=mesh, **options), floats(1))
    assert adds_up(jax.vmap(total, axis_name="d"), floats(1))


def test_collectives_stay_inside_of_a_process(monkeypatch):
    def of_two_processes(_, site, __, roles):
        processes = np.arange(8) // 4
        return in_host.slices(
            site.axes, 4, processes, roles.groups, roles.members, 1 << 20, np.dtype(np.float32), "sum"
        )

    monkeypatch.setattr(start_and_done, "_slices", of_two_processes)
    text = lowered(mapped(lambda x: jax_passing.psum(x, "d")), jax.ShapeDtypeStruct((8, 1 << 20), np.float32))
    ((_, _, spec, _),) = calls(text, "passing_psum")
    assert numbers(spec["slices"]) == [0, 1, 2, 3] * 2
    assert spec["slice_elements"] == str(1 << 18)
    collectives = re.findall(r"stablehlo\.all_(?:to_all|gather).*", text)
    assert len(collectives) == 2
    assert all("dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>" in each for each in collectives)


def test_devices_of_several_processes_add_up_apart():
    def of(processes, sizes, axes, process=0):
        names = ("g", "d")
        processes = np.array(processes)
        placement = place(processes, dict(zip(names, sizes, strict=True)), frozenset(names), axes, process)
        grid = np.indices(sizes).reshape(2, -1)
        members = grid[1] if axes == ("d",) else np.arange(processes.size)
        groups = grid[0] if axes == ("d",) else np.zeros_like(members)
        here = placement.local_member_count
        return in_host.slices(axes, here, processes, groups, members, 1 << 21, np.dtype(np.float32), "sum")

    there = of([0, 0, 1, 1], (1, 4), ("d",))
    assert (there.members, there.slice_count, there.numbers.tolist()) == ([[0, 1], [2, 3]], 2, [0, 1, 0, 1])
    mixed = of([1, 0, 0, 1, 1, 0, 0, 1], (2, 4), ("d",))
    assert (mixed.members, mixed.numbers.tolist()) == ([[0, 3], [1, 2]], [0, 0, 1, 1] * 2)
    assert of([0, 0, 1, 1, 0, 0, 1, 1], (2, 4), ("g", "d")).members == [[0, 1, 4, 5], [2, 3, 6, 7]]
    # XLA has the same groups of members wherever the other axes are.
    assert of([0, 0, 1, 1, 0, 1, 0, 1], (2, 4), ("d",)) is None
    # As many members for each process.
    assert of([0, 0, 0, 1], (1, 4), ("d",)) is None
    assert of([0, 1, 2, 3], (1, 4), ("d",)) is None
