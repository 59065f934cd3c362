"""How sums are lowered for GPUs: two calls each, with the names that sums have on CPU. No GPU is needed for that."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.collective.lowering.gpu import in_host
from jax_passing.errors import ConfigError
from support.jax.lowered_sums import LAYERS, calls, layers, lowered, mapped, names, numbers

pytestmark = pytest.mark.usefixtures("session")


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
    """Counts products of matrices that depend on a value. No other function of the text may have one of that name."""
    behind, count = {value}, 0
    for result, operation in re.findall(r"^ *(%\w+)(?::\d+)? = (.*)", text, re.MULTILINE):
        if behind.intersection(re.findall(r"%\w+", operation)):
            behind.add(result)
            count += "dot_general" in operation
    return count


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("more", [0, 1])  # buckets whose gradients may be made meanwhile: where devices add up first
def test_sums_start_within_the_backward_pass(monkeypatch, more, backwards):
    if more:
        monkeypatch.setattr(in_host, "WORTH_BYTES", 0)
    text = lowered(*layers(backwards=backwards))
    held_by = {operands[-1]: f"%{result}" for result, operands, _, aliases in calls(text, "passing_hold") if aliases}
    behind = [products_behind(text, held_by.get(f"%{start}#0")) for start, *_ in calls(text, "passing_psum")]
    # Each layer that comes later in the backward pass has two, its weight's gradient and its input's, but for the first
    # such product, which is held, and the input of the first layer.
    later = range(LAYERS - 1 - more, -1, -1)
    assert sorted(behind, reverse=True) == [max(2 * count - 1, 0) for count in later] + [0] * more


def held_count(text):
    """Counts the products that are held until a sum has started."""
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
    """A start call may depend on any operation. Lowering fails if MLIR finds a value used before its definition."""

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
        ((_, _, spec, _),) = calls(lowered(f, jnp.ones((4, 4))), "passing_psum")
        mesh, of_group, of_member = (numbers(spec[name]) for name in ("gpus", "groups", "members"))
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
    ((_, _, spec, _),) = calls(lowered(f, jnp.ones(8)), "passing_psum")
    assert numbers(spec["members"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert numbers(spec["groups"]) == [0] * 8
    assert spec["replica_count"] == "2"


def test_devices_are_numbered_from_this_hosts_first():
    mesh = jax.sharding.Mesh(jax.local_devices()[:4:-1], ("d",))
    f = jax.shard_map(lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    ((_, _, spec, _),) = calls(lowered(f, jnp.ones(3)), "passing_psum")
    assert numbers(spec["gpus"]) == [7, 6, 5]
    assert numbers(spec["members"]) == [0, 1, 2]


def test_without_a_mesh_any_device_will_do():
    text = lowered(jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d"), jnp.ones(3))
    ((_, _, spec, _),) = calls(text, "passing_psum")
    assert [spec[name] for name in ("gpus", "groups", "members")] == ["-1", "0", "0"]


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
