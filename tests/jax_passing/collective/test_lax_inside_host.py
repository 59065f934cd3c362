"""Warnings of collectives of jax.lax that stay inside the host, and of sessions that end without sums over hosts."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import source_info_util
from jax.lax import pmean
from jax.lax import ppermute as moved
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing.errors import InsideHostWarning
from jax_passing.host import inside, scope

X = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)


def mesh_of(name="d"):
    return jax.make_mesh((4,), (name,), axis_types=(jax.sharding.AxisType.Auto,))


def mapped(f, check_vma=False, name="d"):
    return jax.shard_map(
        lambda x: jax.tree.map(lambda y: jnp.sum(y)[None], f(x)),
        mesh=mesh_of(name), in_specs=P(name), out_specs=P(name), check_vma=check_vma,
    )  # fmt: skip


@pytest.fixture
def several_hosts(session):
    """As far as tracing goes."""
    inside.begin()
    scope.begin(scope.of_session()._replace(axis_names=("d", "i"), world_size=2))
    yield
    inside.begin()


def traced(f, name="d"):
    return jax.make_jaxpr(mapped(f, name=name))(X)


def said(f, *arguments):
    """The warnings, each of which JAX's own filters would show once for its line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        f(*arguments)
    return caught


def test_each_line_warns_that_it_stays_inside(several_hosts):
    def step(x):
        for _ in range(2):
            x = jax.tree.map(functools.partial(pmean, axis_name="d"), x)
        index = jax.lax.axis_index("d")
        return x, moved(x, "d", [(0, 1)]) * jax.lax.psum(x, "d"), index

    first = step.__code__.co_firstlineno
    caught = said(traced, step)
    assert {one.category for one in caught} == {InsideHostWarning}
    assert {one.filename for one in caught} == {__file__}
    texts = [str(one.message) for one in caught]
    assert [(one.lineno - first, text.split()[0]) for one, text in zip(caught, texts, strict=True)] == [
        (2, "jax.lax.pmean"), (3, "jax.lax.axis_index"), (4, "jax.lax.ppermute"), (4, "jax.lax.psum"),
    ]  # fmt: skip
    assert f"pmean over 'd' at test_lax_inside_host.py:{first + 2}:" in texts[0]
    assert "Write jax_passing.pmean; or, where a library calls it, have jax_passing.use_for_jax()" in texts[0]
    assert "Those that jax_passing has are all_gather" in texts[2]

    mapped_otherwise = jax.vmap(lambda x: jax.lax.psum(x, ("i",)), axis_name="i")
    assert len(said(mapped_otherwise, X)) == 1
    with pytest.raises(InsideHostWarning), warnings.catch_warnings():
        warnings.simplefilter("error", InsideHostWarning)
        mapped_otherwise(X)


def test_what_is_right_is_silent(several_hosts, monkeypatch):
    def several(x):
        return jax.lax.psum(x, "d"), pmean(x, "d"), jax.lax.all_gather(x, "d"), jax.lax.axis_index("d")

    warned = functools.partial(said, traced)
    assert len(warned(several)) == 4
    with jax_passing.per_host_gradients():
        assert not warned(several)
    assert not warned(lambda x: (jax_passing.pmean(x, "d"), jax_passing.axis_index("d"), jax_passing.pmax(x, "d")))
    assert not said(traced, lambda x: jax.lax.psum(x, "e"), "e")
    with pytest.raises(NameError):  # which of two axes there is, some libraries try
        assert not said(traced, lambda x: jax.lax.axis_index("d"), "e")
    # JAX itself calls collectives in derivatives.
    assert len(warned(jax.grad(lambda x: jnp.sum(jax.lax.all_gather(x, "d"))))) == 1
    weight = jnp.float32(2)
    slope = jax.grad(lambda w: mapped(lambda x: jnp.sin(w * x), check_vma=True)(X).sum())
    assert not said(jax.make_jaxpr(slope), weight)
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # a mesh over them has all hosts' devices
    assert not warned(several)


def test_jax_still_finds_the_users_line(session):
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.psum(x, "e"), axis_env=[("e", 4)])(1.0)
    assert source_info_util.summarize(jaxpr.eqns[0].source_info).startswith(__file__)


def test_a_world_of_one_host_is_silent(session):
    assert not said(traced, lambda x: jax.lax.psum(x, "d"))


def test_sums_that_no_program_makes_are_told_from_others(session):
    counted = []
    for sum_something in (
        lambda: jax_passing.process_sum([np.float32(1), np.zeros(0), np.int32(1), np.int32(2)]),
        jax_passing.barrier,
        lambda: jax_passing.on_rank_zero(lambda: None),
    ):
        inside.begin()
        before = session.stats()["sums_started"]
        sum_something()
        counted.append(inside._between_programs)
        assert counted[-1] == session.stats()["sums_started"] - before
    assert counted == [2, 1, 1]


def test_a_session_ends_with_a_warning_if_only_an_undeclared_axis_is_summed(several_hosts):
    (nothing,) = said(inside.end, "rank 0 of 2", ("d", "i"), 0)
    assert "nothing was summed over the hosts" in str(nothing.message)
    inside.between_programs(5)
    assert not said(inside.end, "rank 0 of 2", ("d", "i"), 5)

    assert not said(traced, lambda x: jax.lax.psum(x, "e"), "e")  # may well be meant
    assert not said(inside.end, "rank 0 of 2", ("d", "i"), 5)

    def step(x):
        return jax_passing.psum(x, "e")

    (undeclared,) = said(traced, step, "e")
    assert (undeclared.filename, undeclared.lineno) == (__file__, step.__code__.co_firstlineno + 1)
    assert "inside this host, as init(axis_name=...) declares 'd' or 'i', which is not in" in str(undeclared.message)
    # Beside an axis that goes on over all hosts it may well be meant.
    assert not said(traced, jax.vmap(lambda x: jax_passing.psum(x, "e"), axis_name="e"))

    (ended,) = said(inside.end, "rank 0 of 2", ("d", "i"), 5)
    assert "only process_sum, barrier or on_rank_zero went over the hosts" in str(ended.message)
    assert "declares 'd', 'i'. What stayed inside this host: jax.lax.psum over 'e' at test" in str(ended.message)
    assert "; jax_passing's collective over 'e' at test_lax_inside_host.py:" in str(ended.message)

    assert not said(inside.end, "rank 0 of 2", ("d", "i"), 6)  # one more, of a program
