"""How sums are lowered: what every host must write alike into its program."""

import gc
import json
import re
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing import _native
from jax_passing._compat import lowered_modules
from jax_passing.collective.runtime.compiled_text import fingerprint_of_module, streams
from jax_passing.host import scope
from support.jax.lowered_sums import specs

pytestmark = pytest.mark.usefixtures("session")


def lowered(f, *shape, sizes=(8,), axis_names=("d",), **options):
    mesh = jax.make_mesh(sizes, axis_names, axis_types=(AxisType.Auto,) * len(sizes))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=P(axis_names[0]), out_specs=P(), check_vma=False, **options)
    return jax.jit(mapped).lower(jnp.ones(shape)).as_text()


def test_attributes():
    def step(x):
        return jax_passing.psum((x, x.astype(jnp.complex64)), "d")

    second, first = specs(lowered(step, 16, 3))  # the last leaf first
    assert first["program"] == "jit_step on 8 devices"
    assert re.fullmatch(
        r"test_lowering\.py:\d+:\d+ in test_attributes.<locals>.step psum of float32\[2,3\] over d", first["site_name"]
    )
    assert (first["site"], second["site"]) == ("1", "0")
    assert (first["dtype"], second["dtype"]) == ("float32", "float32")
    assert (first["leaf_elements"], second["leaf_elements"]) == ("6", "12")
    assert (first["member_count"], first["local_member_count"], first["replica_count"]) == ("8", "8", "1")
    assert first["world_size"] == "1"


def test_same_program_is_lowered_alike_but_for_its_ordinal():
    def step(x):
        return jax_passing.psum(x, "d") + jax_passing.psum(x * 2, "d")

    # From one line, as on two hosts.
    first, again = [lowered(step, 16, 3) for _ in range(2)]
    assert first != again
    ordinals = [{call["ordinal"] for call in specs(text)} for text in (first, again)]
    assert all(len(each) == 1 for each in ordinals)
    assert ordinals[0] != ordinals[1]
    without = [re.sub(r"ordinal=\d+", "", text) for text in (first, again)]
    assert without[0] == without[1]


def test_groups_and_replicas():
    mesh = jax.make_mesh((4, 2), ("d", "m"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(
        lambda x: jax_passing.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), axis_names={"d"}, check_vma=False
    )
    (call,) = specs(jax.jit(mapped).lower(jnp.ones(8)).as_text())
    assert (call["member_count"], call["local_member_count"], call["replica_count"]) == ("4", "4", "2")


def test_results_alias_their_operands():
    text = lowered(lambda x: jax_passing.psum((x, x + 1), "d"), 8)
    assert text.count("output_operand_alias<output_tuple_indices") == 2


def test_equal_calls_have_sites_of_their_own():
    text = lowered(lambda x: sum(jax_passing.psum(x, "d") for _ in range(3)), 8)
    assert [call["site"] for call in specs(text)] == ["0", "1", "2"]


def test_empty_leaves_make_no_call():
    assert specs(lowered(lambda x: jax_passing.psum(x[:0], "d"), 8)) == []
    (call,) = specs(lowered(lambda x: jax_passing.psum((x[:0], x), "d"), 8))
    assert call["leaf_elements"] == "1"


def test_numbering_keeps_no_module_alive():
    def count():
        gc.collect()
        return len(lowered_modules._counters)

    before = count()  # JAX may keep some that other tests lowered
    for _ in range(5):
        lowered(lambda x: jax_passing.psum(x, "d"), 8)
    assert count() <= before


def test_end_of_compilation_is_told(monkeypatch):
    lowered(lambda x: jax_passing.psum(x, "d"), 8)  # registers the listener
    calls = []
    monkeypatch.setattr(_native, "end_compilation", lambda modules: calls.append(threading.get_ident()) or [])
    jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile()
    assert threading.get_ident() in calls


def in_a_world_of(size):
    """As in a session of so many hosts, as far as tracing goes."""
    return scope.within(scope.of_thread()._replace(axis_names=("d",), world_size=size))


def test_program_of_another_world_size_is_refused():
    f = jax.jit(jax.vmap(lambda x: jax_passing.psum(x, "d"), axis_name="d"))
    with in_a_world_of(3):
        compiled = f.lower(jnp.ones(4)).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"ConfigError: .* compiled for 3 ranks, .* has 1"):
        compiled(jnp.ones(4)).block_until_ready()
    assert f(jnp.ones(4))[0] == 4  # jit compiles another program


def test_pmean_and_counts_include_the_hosts():
    def f(x):
        assert jax_passing.psum(1, "d") == jax_passing.axis_size("d") == 24
        return x

    with in_a_world_of(3):
        lowered(f, 8)


def identities(f):
    return [json.loads(call["identity"]) for call in specs(lowered(f, 8))]


def test_calls_of_one_jitted_function_are_told_apart():
    total = jax.jit(lambda x: jax_passing.psum(x, "d"))

    def program(x):
        first = total(x)
        return first + total(2 * x) + sum(total(i * x) for i in range(2))

    first, second, third, fourth = identities(program)
    assert first["place"] == second["place"] == third["place"]
    assert first["calls"] != second["calls"] != third["calls"]
    assert third["calls"] == fourth["calls"]  # one line, in a loop: told apart by their order in the program
    assert [each["nth"] for each in (first, second, third, fourth)] == [0, 0, 0, 1]


def test_a_scan_in_a_function_that_is_called_several_times():
    @jax.jit
    def helper(x):
        return jax.lax.scan(lambda c, _: (c + jax_passing.psum(c, "d"), None), x, None, length=3)[0]

    assert [each["nth"] for each in identities(lambda x: sum(helper(x + i) for i in range(2)))] == [0, 1]


def test_identity_tells_how_a_sum_came_about():
    def program(x):
        return jax.grad(lambda x: (jax_passing.psum(x * x, "d") ** 2).sum())(x)

    assert [each["kind"] for each in identities(program)] == ["", "jt"]
    (one,) = identities(lambda x: jax_passing.psum({"w": x, "b": (x, 2.0)}, "d", bucket_bytes=99)["w"])
    assert one["leaves"] == [["['w']", "float32[1]"], ["['b'][0]", "float32[1]"]]
    assert (one["axes"], one["bucket_bytes"], one["op"], one["strategy"], one["stream"]) == (
        ["d"],
        99,
        "sum",
        "passing",
        "",
    )


def test_a_module_has_a_fingerprint():
    def program(factor):
        total = jax.jit(lambda x: jax_passing.psum(x, "d"))
        return jax.jit(jax.vmap(lambda x: sum(total(x * i) for i in range(factor)), axis_name="d"))

    def fingerprint(factor):
        compiled = program(factor).lower(jnp.ones(8)).compile()
        (ordinal,) = {int(number) for number in re.findall(r'spec = "ordinal=(\d+)', compiled.as_text())}
        return fingerprint_of_module("jit__lambda on 1 device", ordinal)

    assert fingerprint(2) == fingerprint(2)  # of two modules, whose ordinals differ
    assert fingerprint(2).split()[0] != fingerprint(3).split()[0]
    assert "2 custom-call" in fingerprint(2)
    assert "(f32[8])->f32[8]" in fingerprint(2)
    assert fingerprint_of_module("jit__lambda on 1 device", 1 << 40) is None


def test_a_module_of_large_gathers_has_a_fingerprint_and_a_stream():
    gather = jax.jit(jax.vmap(lambda x: jax_passing.all_gather(x, "d"), axis_name="d"))
    compiled = gather.lower(jnp.ones((1, 1 << 18))).compile()
    (ordinal,) = {int(number) for number in re.findall(r'spec = "ordinal=(\d+)', compiled.as_text())}
    assert "passing_early" in compiled.as_text()
    assert fingerprint_of_module("jit__lambda on 1 device", ordinal) is not None
    assert streams(compiled) == {""}
