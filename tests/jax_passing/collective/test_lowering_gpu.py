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


def layers(work=0):
    """A step of data parallelism with a bucket for each layer, and `work` of its own beside that."""

    def step(params, x):
        def loss(params):
            y = x
            for w in params:
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
    before = []
    for done, (token, gate, leaf), _, _ in dones:
        assert leaf == token.replace("#0", "#1")
        started, last = gates[gate][:LAYERS], gates[gate][LAYERS : 2 * LAYERS]
        # The starts of all sums, as they are of one group, one element of each layer's gradient, and the sum before.
        assert started == tokens[::-1]
        assert all(re.search(rf"{each} = stablehlo\.slice", text) for each in last)
        assert gates[gate][2 * LAYERS :] == before
        before = [f"%{done}"]


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
