"""How sums are lowered for GPUs: two calls each, with the names that sums have on CPU. No GPU is needed for that."""

import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.lowering import cpu
from jax_passing.collective.lowering.gpu import in_host
from jax_passing.collective.lowering.placement import Placement, place
from jax_passing.errors import ConfigError

pytestmark = pytest.mark.usefixtures("session")

LAYERS = 6


def mapped(f, sizes=(8,), axis_names=("d",), **options):
    mesh = jax.make_mesh(sizes, axis_names, axis_types=(AxisType.Auto,) * len(sizes))
    options = {"in_specs": P(axis_names[0]), "out_specs": P(), "check_vma": False, **options}
    return jax.shard_map(f, mesh=mesh, **options)


def lowered(f, *arguments, platform="cuda"):
    return jax.jit(f).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def calls(text, target):
    """(results, operands, attributes, aliases) of each custom call, in the order of the text."""
    pattern = re.compile(rf"%(\w+)(?::\d+)? = stablehlo\.custom_call @{target}\((.*?)\) \{{(.*)\}} :")
    value = re.compile(r'(\w+) = (?:"((?:[^"\\]|\\.)*)"|dense<(.*?)>|([-\d]+))')
    return [
        (
            result,
            [operand for operand in operands.split(", ") if operand],
            {name: text or numbers or number for name, text, numbers, number in value.findall(config)},
            re.findall(r"output_tuple_indices = \[(\d*)\], operand_index = (\d+)", config),
        )
        for result, operands, config in pattern.findall(text)
    ]


def names(text):
    """What hosts must have alike in each sum, in the order of the sums' names."""
    alike = ("program", "identity", "dtype", "op", "leaf_elements", "member_count", "world_size", "flat", "devices")
    return sorted(json.dumps({name: call[2][name] for name in alike}) for call in calls(text, "passing_psum"))


def numbers(text, count=8):
    """Of an array attribute, which MLIR writes as one number if all are equal."""
    found = json.loads(text)
    return found if isinstance(found, list) else [found] * count


def layers(work=0, *, backwards=False):
    """A step of data parallelism with a bucket for each layer, and `work` of its own beside that. `backwards`: the
    parameters are listed from the last layer to the first."""

    def step(params, x):
        def loss(params):
            y = x
            for w in params[:: -1 if backwards else 1]:
                y = jnp.tanh(y @ w)
            return jnp.sum(y)

        grads = jax.grad(loss)(jax.lax.pcast(params, "d", to="varying"))
        for _ in range(work):
            x = jnp.sin(x)
        sums = jax_passing.psum(grads, "d", bucket_bytes=128 * 128 * 4)
        return [w - g for w, g in zip(params, sums, strict=True)], x

    params = [jnp.ones((128, 128)) for _ in range(LAYERS)]
    return mapped(step, in_specs=(P(), P("d")), out_specs=(P(), P("d")), check_vma=True), params, jnp.ones((8, 128))


def test_a_sum_is_two_calls_in_place():
    text = lowered(mapped(lambda x: jax_passing.psum((x, 2 * x), "d")), jnp.ones((8, 3)))
    ((start, (before, *leaves), _, start_aliases),) = calls(text, "passing_psum")
    ((done, (token, gate, *under_way), _, done_aliases),) = calls(text, "passing_psum_done")
    assert len(leaves) == 2
    assert start_aliases == [("1", "1"), ("2", "2")]
    assert token == gate == f"%{start}#0"
    assert under_way == [f"%{start}#1", f"%{start}#2"]
    assert done_aliases == [("0", "2"), ("1", "3")]
    assert re.search(rf"return .*%{done}#0, .*%{done}#1|%{done}#1, %{done}#0", text)
    assert re.search(rf"{before} = stablehlo.constant dense<0> : tensor<i32>", text)
    assert text.count("has_side_effect = true") == 2  # dead or not, both are there


def test_one_leaf():
    text = lowered(mapped(lambda x: jax_passing.psum(x, "d")), jnp.ones(8))
    ((start, _, _, _),) = calls(text, "passing_psum")
    ((_, operands, _, aliases),) = calls(text, "passing_psum_done")
    assert operands == [f"%{start}#0", f"%{start}#0", f"%{start}#1"]
    assert aliases == [("", "2")]


def test_sums_start_in_the_order_of_the_program():
    def program(x):
        return jax_passing.psum(x, "d") + jax_passing.psum(2 * x, "d") * jax_passing.psum(3 * x, "d")

    starts = calls(lowered(mapped(program), jnp.ones(8)), "passing_psum")
    assert len(starts) == 3
    for (start, *_), (_, (before, *_), _, _) in itertools.pairwise(starts):
        assert before == f"%{start}#0"  # when the one before has started, not when it is done


def test_held_sums_are_awaited_behind_the_backward_pass():
    text = lowered(*layers())
    lines = text.splitlines()

    def places(pattern):
        return [i for i, line in enumerate(lines) if re.search(pattern, line)]

    starts, dones = calls(text, "passing_psum"), calls(text, "passing_psum_done")
    gates = {f"%{result}": operands for result, operands, _, _ in calls(text, "passing_hold")}
    assert len(starts) == len(dones) == LAYERS
    assert max(places(r"stablehlo\.dot_general")) < min(places(r"@passing_psum_done\("))
    assert max(places(r"@passing_psum\(")) < min(places(r"@passing_psum_done\("))
    tokens = [f"%{start}#0" for start, *_ in starts]
    assert [operands[0] for _, operands, _, _ in dones] == tokens  # as they started
    before, started = [], tokens
    for done, (token, gate, leaf), _, _ in dones:
        assert leaf == token.replace("#0", "#1")
        # The sum before, all layers' gradients, and, once for all of them, the starts of all sums, as they are of one
        # group.
        *first, ready = gates[gate][: len(before) + 1]
        assert first == before
        assert gates[gate][len(before) + 1 :] == started
        assert len(gates[ready]) == LAYERS
        assert all(gates[each.removesuffix("#1")] for each in gates[ready])
        before, started = [f"%{done}"], []


def products_behind(text, value):
    """How many products of matrices depend on a value, in a text in which no other function has one of that name."""
    behind, count = {value}, 0
    for result, operation in re.findall(r"^ *(%\w+)(?::\d+)? = (.*)", text, re.MULTILINE):
        if behind.intersection(re.findall(r"%\w+", operation)):
            behind.add(result)
            count += "dot_general" in operation
    return count


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("beside", [0, 1])  # buckets whose gradients may be made meanwhile: where devices add up first
def test_sums_start_within_the_backward_pass(request, beside, backwards):
    if beside:
        request.getfixturevalue("worth")
    text = lowered(*layers(backwards=backwards))
    held_by = {operands[-1]: f"%{result}" for result, operands, _, aliases in calls(text, "passing_hold") if aliases}
    behind = [products_behind(text, held_by.get(f"%{start}#0")) for start, *_ in calls(text, "passing_psum")]
    # Of each layer that comes later, in the backward pass, its weight's gradient and its input's, but for the first
    # such product, which is held, and the input of the first layer.
    later = range(LAYERS - 1 - beside, -1, -1)
    assert sorted(behind, reverse=True) == [max(2 * count - 1, 0) for count in later] + [0] * beside


def held_count(text):
    """Of products that are held until a sum has started."""
    tokens = {f"%{start}#0" for start, *_ in calls(text, "passing_psum")}
    return sum(bool(aliases) and operands[-1] in tokens for _, operands, _, aliases in calls(text, "passing_hold"))


def test_small_buckets_dont_keep_others_from_starting_early():
    def step(params, x):
        def loss(params):
            y = x
            for w, b in params:
                y = jnp.tanh(y @ w + b[None])
            return jnp.sum(y)

        return jax_passing.psum(jax.grad(loss)(params), "d", bucket_bytes=128 * 128 * 4)

    params = [(jnp.ones((128, 128)), jnp.ones(128)) for _ in range(LAYERS)]
    text = lowered(mapped(step, in_specs=(P(), P("d"))), params, jnp.ones((8, 128)))
    assert len(calls(text, "passing_psum")) > LAYERS
    assert held_count(text) >= LAYERS - 2


def test_a_function_with_sums_starts_them_early_each_time():
    step, params, x = layers()

    def twice(params, x):
        once, x = step(params, x)
        return step(once, x)

    assert held_count(lowered(twice, params, x)) == 2 * held_count(lowered(step, params, x)) == 2 * (LAYERS - 1)


def test_outer_products_are_left_where_they_are_used():
    """XLA needs no memory for them, of which a call would take any amount."""

    def step(params):
        def loss(params):
            total = 0.0
            for w in params:
                total += jnp.sum(jnp.sin(jnp.outer(jnp.tanh(w).sum(0), w.sum(1))))
            return total

        return jax_passing.psum(jax.grad(loss)(params), "d", bucket_bytes=128 * 128 * 4)

    assert held_count(lowered(mapped(step, in_specs=P()), [jnp.ones((128, 128)) for _ in range(LAYERS)])) == 0


@pytest.mark.parametrize("which", [0, 5])  # gradient: the last one, the first one
def test_sums_start_early_in_any_program(which):
    """What a start call needs may stand anywhere. Where MLIR finds that a value is used before it is there, lowering
    fails."""

    def program(params, x):
        def loss(params):
            y = jnp.tanh(x @ params[0])
            total = jax_passing.psum(jnp.sum(y), "d")  # in the backward pass as well
            y = jax.lax.cond(jnp.sum(y) > 0, lambda: y @ params[1], lambda: total * y)
            y = jax.jit(lambda y: jnp.tanh(y @ params[2]))(y)
            y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), y, jnp.stack(params[3:5]))
            return jnp.sum(y @ params[5] + jax.checkpoint(lambda y: jnp.tanh(y @ params[0]) @ params[1])(y))

        grads = jax.grad(loss)(params)
        norm = jax_passing.psum(jnp.sum(grads[which] @ grads[5]), "d")  # it starts before all buckets
        sums = jax_passing.psum([grad * norm for grad in grads[1:3]] + grads, "d", bucket_bytes=128 * 128 * 4)
        return sums, jax_passing.psum(sums[0] @ sums[1], "d")

    text = lowered(
        mapped(program, in_specs=(P(), P("d"))), [jnp.ones((128, 128)) for _ in range(6)], jnp.ones((16, 128))
    )
    assert len(calls(text, "passing_psum")) == len(calls(text, "passing_psum_done")) > 10
    assert held_count(text) > 0


def test_each_start_has_one_done():
    def program(x):
        def total(x):
            sums = jax_passing.psum([x, 2 * x, 3 * x[:0]], "d", bucket_bytes=4)
            branch = jax.lax.cond(x[0] > 0, lambda x: jax_passing.psum(x, "d"), lambda x: x, x)
            return sum(each.sum() for each in sums) + branch.sum()

        primal, tangent = jax.jvp(total, (x,), (x,))
        _, vjp = jax.vjp(total, x)
        looped = jax.lax.fori_loop(0, 3, lambda _, x: jax.checkpoint(total)(x) * x, x)
        jax_passing.psum(x, "d")  # of no use
        return primal + tangent + vjp(primal)[0].sum() + looped.sum()

    text = lowered(mapped(program), jnp.ones(16))
    starts, dones = calls(text, "passing_psum"), calls(text, "passing_psum_done")
    assert len(starts) == len(dones) > 10
    # Names are of functions and blocks: in the text each start comes before its done, in the same function.
    pending = []
    for line in text.splitlines():
        if "func.func" in line:
            assert pending == []
        if found := re.search(r"%(\w+):\d+ = stablehlo\.custom_call @passing_psum\(", line):
            pending.append(f"%{found[1]}#0")
        if found := re.search(r"@passing_psum_done\((%\w+#0)", line):
            pending.remove(found[1])
    assert pending == []


@pytest.mark.parametrize("work", [0, 3])
def test_names_are_those_of_other_hosts_on_any_platform(work):
    there = lowered(*layers(), platform="cpu")
    assert len(names(there)) == LAYERS
    assert names(lowered(*layers(work))) == names(there)


def test_devices_are_told_their_groups_and_members():
    devices = np.arange(8).reshape(2, 4)
    for axes, groups in (("d", [0, 1, 2, 3]), ("m", [0, 1]), (("m", "d"), [0])):

        def total(x, axes=axes):
            return jax_passing.psum(x, axes)

        f = mapped(total, (2, 4), ("d", "m"), in_specs=P("d", "m"))
        ((_, _, attributes, _),) = calls(lowered(f, jnp.ones((4, 4))), "passing_psum")
        mesh, of_group, of_member = (numbers(attributes[name]) for name in ("mesh", "groups", "members"))
        assert mesh == list(range(8))
        assert sorted(set(of_group)) == groups
        for device in mesh:
            d, m = np.argwhere(devices == device)[0]
            assert of_group[device] == {"d": m, "m": d}.get(axes, 0)
            assert of_member[device] == {"d": d, "m": m}.get(axes, m * 2 + d)


def test_replicas_are_one_member():
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    f = jax.shard_map(
        lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), axis_names={"d"}, check_vma=False
    )
    ((_, _, attributes, _),) = calls(lowered(f, jnp.ones(8)), "passing_psum")
    assert numbers(attributes["members"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert numbers(attributes["groups"]) == [0] * 8
    assert attributes["replica_count"] == "2"


def test_devices_are_numbered_from_this_hosts_first():
    mesh = jax.sharding.Mesh(jax.local_devices()[:4:-1], ("d",))
    f = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    ((_, _, attributes, _),) = calls(lowered(f, jnp.ones(3)), "passing_psum")
    assert numbers(attributes["mesh"], 3) == [7, 6, 5]
    assert numbers(attributes["members"], 3) == [0, 1, 2]


def test_without_a_mesh_any_device_will_do():
    text = lowered(jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d"), jnp.ones(3))
    ((_, _, attributes, _),) = calls(text, "passing_psum")
    assert [attributes[name] for name in ("mesh", "groups", "members")] == ["-1", "0", "0"]


def test_devices_that_jax_doesnt_name_are_an_error():
    mesh = jax.sharding.AbstractMesh((8,), ("d",))
    f = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    with pytest.raises(ConfigError, match="doesn't name"):
        lowered(f, jax.ShapeDtypeStruct((8,), np.float32, sharding=jax.NamedSharding(mesh, P("d"))))


def test_what_only_the_running_program_knows():
    text = lowered(mapped(lambda x: x + jax_passing.axis_index("d")), jnp.arange(8, dtype=jnp.int32))
    assert "custom_call @passing_rank(" in text


def test_export():
    f = jax.jit(jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d"))
    exported = jax.export.export(
        f,
        platforms=["cuda"],
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call(each) for each in ("passing_psum", "passing_psum_done")
        ],
    )(jnp.ones(3))
    assert exported.platforms == ("cuda",)
    text = exported.mlir_module()
    assert len(calls(text, "passing_psum")) == len(calls(text, "passing_psum_done")) == 1


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
    ((start, (_, shard), attributes, aliases),) = calls(text, "passing_psum")
    ((done, (_, _, under_way), _, _),) = calls(text, "passing_psum_done")
    # Seven elements of each device, on eight of them one each.
    assert (attributes["shard_elements"], attributes["leaf_elements"]) == ("1", "[2, 5]")
    assert numbers(attributes["shards"]) == list(range(8))
    assert (attributes["local_member_count"], attributes["dtype"]) == ("8", dtype)
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
    assert shard == added[-1].split()[0]
    assert text.index("all_to_all") < text.index(added[0]) < text.index("@passing_psum(")
    assert text.index(f"%{done} = ") < text.index("all_gather")


def test_complex_numbers_are_two_each(worth):
    ((_, _, attributes, _),) = calls(
        lowered(mapped(lambda x: jax_passing.psum(x, "d")), jnp.ones((8, 3), np.complex64)), "passing_psum"
    )
    assert (attributes["dtype"], attributes["leaf_elements"], attributes["shard_elements"]) == ("float32", "6", "1")


def test_held_sums_of_shards_are_awaited_behind_the_backward_pass(worth):
    text = lowered(*layers())
    lines = text.splitlines()

    def places(pattern):
        return [i for i, line in enumerate(lines) if re.search(pattern, line)]

    assert len(places(r"all_to_all")) == len(places(r"all_gather")) == LAYERS
    starts, dones = places(r"@passing_psum\("), places(r"@passing_psum_done\(")
    assert max(places(r"all_to_all")) < max(starts) < min(dones) < min(places(r"all_gather"))
    assert max(places(r"stablehlo\.dot_general")) < min(dones)
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
        ((_, _, attributes, _),) = calls(text, "passing_psum")
        assert is_over(re.findall(r"all_to_all.*", text)[0], axes, groups)
        for group in groups:
            assert [numbers(attributes["shards"])[device] for device in group] == list(range(len(group)))


def test_where_the_host_adds_up(monkeypatch):
    def adds_up(f, *arguments):
        ((_, _, attributes, _),) = calls(text := lowered(f, *arguments), "passing_psum")
        assert ("all_to_all" in text) == (attributes["shard_elements"] != "0")
        return attributes["shard_elements"] == "0"

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
    placement = Placement(8, 4, 1, local=False, process_count=2)

    def of_two_processes(total, groups, members):
        processes = np.arange(8) // 4
        return in_host.shards(total.axes, placement, processes, groups, members, 1 << 20, np.dtype(np.float32), "sum")

    monkeypatch.setattr(cpu, "_shards", of_two_processes)
    text = lowered(mapped(lambda x: jax_passing.psum(x, "d")), jax.ShapeDtypeStruct((8, 1 << 20), np.float32))
    ((_, _, attributes, _),) = calls(text, "passing_psum")
    assert numbers(attributes["shards"]) == [0, 1, 2, 3] * 2
    assert attributes["shard_elements"] == str(1 << 18)
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
        return in_host.shards(axes, placement, processes, groups, members, 1 << 21, np.dtype(np.float32), "sum")

    there = of([0, 0, 1, 1], (1, 4), ("d",))
    assert (there.members, there.shard_count, there.numbers.tolist()) == ([[0, 1], [2, 3]], 2, [0, 1, 0, 1])
    mixed = of([1, 0, 0, 1, 1, 0, 0, 1], (2, 4), ("d",))
    assert (mixed.members, mixed.numbers.tolist()) == ([[0, 3], [1, 2]], [0, 0, 1, 1] * 2)
    assert of([0, 0, 1, 1, 0, 0, 1, 1], (2, 4), ("g", "d")).members == [[0, 1, 4, 5], [2, 3, 6, 7]]
    # XLA has the same groups of members wherever the other axes are.
    assert of([0, 0, 1, 1, 0, 1, 0, 1], (2, 4), ("d",)) is None
    # As many members for each process.
    assert of([0, 0, 0, 1], (1, 4), ("d",)) is None
    assert of([0, 1, 2, 3], (1, 4), ("d",)) is None
