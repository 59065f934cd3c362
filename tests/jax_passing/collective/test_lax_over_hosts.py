"""Collectives of jax.lax, which libraries call, on one host whose axes are declared; and what is said outside of
`lax_over_hosts`."""

import functools
import pickle
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import axis_size, pmean
from jax.lax import ppermute as moved
from jax.sharding import PartitionSpec as P

import jax_passing
from jax_passing._compat import jax_collectives
from jax_passing.errors import ConfigError, InsideHostWarning, NotInitializedError
from jax_passing.host import inside, scope

X = np.random.default_rng(0).normal(size=(8, 4, 3)).astype(np.float32)


def mesh_of(name="d"):
    return jax.make_mesh((4,), (name,), axis_types=(jax.sharding.AxisType.Auto,))


def everything(x):
    axis = "d"
    return (
        jax.lax.psum({"x": x}, axis)["x"] * jax.lax.psum(1, axis),
        functools.partial(pmean, axis_name=axis)(x) + jax.lax.pmax(x, axis) + jax.lax.pmin(x, (axis,)),
        jax.lax.all_gather(x, axis, axis=1, tiled=True).sum(1),
        jax.lax.psum_scatter(jnp.broadcast_to(x[:1, :1], (4, 4, 3)), axis, scatter_dimension=1).sum(),
        jax.lax.axis_index(axis) * axis_size(axis),
    )


def mapped(f, check_vma=False, name="d"):
    return jax.shard_map(
        lambda x: jax.tree.map(lambda y: jnp.sum(y)[None], f(x)),
        mesh=mesh_of(name), in_specs=P(name), out_specs=P(name), check_vma=check_vma,
    )  # fmt: skip


def test_they_are_ours_in_the_block_and_nowhere_else(session, check_vma):
    f = mapped(everything, check_vma)
    jitted = jax.jit(f)
    before = jitted(X)
    assert "passing" not in str(jax.make_jaxpr(jitted)(X))
    with jax_passing.lax_over_hosts():
        text = str(jax.make_jaxpr(jitted)(X))
        for name in ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "rank"):
            assert f"passing_{name}" in text
        for name in ("psum", "pmax", "pmin", "all_gather", "reduce_scatter"):
            assert f" {name}[" not in text
        inside = jitted(X)
    assert "passing" not in str(jax.make_jaxpr(jitted)(X))
    for results in (inside, jitted(X)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results, before)


def test_axes_that_are_not_declared_and_other_threads_keep_those_of_jax(session):
    texts = []
    with jax_passing.lax_over_hosts():
        jaxpr = jax.make_jaxpr(mapped(lambda x: jax.lax.all_to_all(jax.lax.psum(x, "e"), "e", 1, 1), name="e"))
        assert "passing" not in str(jaxpr(X))
        thread = threading.Thread(target=lambda: texts.append(str(jax.make_jaxpr(mapped(everything))(X))))
        thread.start()
        thread.join(60)
        assert "passing" not in texts[0]


def test_our_own_functions_do_not_notice(session, check_vma):
    def ours(x):
        index = jax_passing.axis_index("d")
        scattered = jax_passing.psum_scatter(jnp.broadcast_to(x[:1, :1], (4, 4, 3)), "d", scatter_dimension=1)
        return jax_passing.pmean(x, "d") + index.astype(x.dtype), jax_passing.all_gather(x, "d"), scattered

    with jax_passing.lax_over_hosts():
        result = jax.jit(mapped(ours, check_vma))(X)
    jax.tree.map(np.testing.assert_array_equal, result, jax.jit(mapped(ours, check_vma))(X))


def test_what_is_equal_is_cast_as_jax_does(session):
    def f(w, x):
        return jax.lax.psum(w, "d"), jax.lax.pmean(w, "d"), jax.lax.psum(x, "d")

    program = jax.shard_map(f, mesh=mesh_of(), in_specs=(P(), P("d")), out_specs=P(), check_vma=True)
    with jax_passing.lax_over_hosts():
        total, mean, _ = jax.jit(program)(jnp.float32(3), X)
        slope = jax.grad(lambda w: jax.jit(program)(w, X)[0])(jnp.float32(3))
    assert (total, mean, slope) == (12, 3, 4)


def test_what_has_no_counterpart_raises(session):
    for f, message in (
        (lambda x: jax.lax.psum(x, "d", axis_index_groups=[[0, 1], [2, 3]]), "psum over 'd' with axis_index_groups"),
        (lambda x: jax.lax.all_gather(x, "d", to="reduced"), "to='reduced'"),
        (lambda x: moved(x, "d", [(0, 1)]), "ppermute over 'd'.*psum_scatter, and jax_passing.broadcast"),
        (lambda x: jax.lax.all_to_all(x, axis_name=("d",), split_axis=1, concat_axis=1), "all_to_all"),
    ):
        with jax_passing.lax_over_hosts(), pytest.raises(ConfigError, match=message):
            jax.make_jaxpr(mapped(f))(X)


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


def test_outside_of_it_each_line_warns_that_it_stays_inside(several_hosts):
    def step(x):
        for _ in range(2):
            x = jax.tree.map(functools.partial(pmean, axis_name="d"), x)
        index = jax.lax.axis_index("d")
        return x, moved(x, "d", [(0, 1)]) * jax.lax.psum(1, "d"), index

    first = step.__code__.co_firstlineno
    caught = said(traced, step)
    assert {one.category for one in caught} == {InsideHostWarning}
    assert {one.filename for one in caught} == {__file__}
    texts = [str(one.message) for one in caught]
    assert [(one.lineno - first, text.split()[0]) for one, text in zip(caught, texts, strict=True)] == [
        (2, "jax.lax.pmean"), (3, "jax.lax.axis_index"), (4, "jax.lax.ppermute"), (4, "jax.lax.psum"),
    ]  # fmt: skip
    assert f"pmean over 'd' at test_lax_over_hosts.py:{first + 2}:" in texts[0]
    assert "Write jax_passing.pmean; or, where a library calls it, put `with jax_passing.lax_over_hosts():`" in texts[0]
    assert "Those that can go over the hosts are all_gather" in texts[2]

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
    with jax_passing.lax_over_hosts():
        assert not warned(several)
    assert not warned(lambda x: (jax_passing.pmean(x, "d"), jax_passing.axis_index("d"), jax_passing.pmax(x, "d")))
    assert not warned(lambda x: (jax_collectives.psum(x, "d"), jax_collectives.axis_index("d")))  # as we call them
    assert not said(traced, lambda x: jax.lax.psum(x, "e") + jax_passing.psum(x, "e"), "e")
    with pytest.raises(NameError):  # which of two axes there is, some libraries try
        assert not said(traced, lambda x: jax.lax.axis_index("d"), "e")
    # JAX itself calls collectives in derivatives.
    assert len(warned(jax.grad(lambda x: jnp.sum(jax.lax.all_gather(x, "d"))))) == 1
    weight = jnp.float32(2)
    slope = jax.grad(lambda w: mapped(lambda x: jnp.sin(w * x), check_vma=True)(X).sum())
    assert not said(jax.make_jaxpr(slope), weight)
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # a mesh over them has all hosts' devices
    assert not warned(several)


def test_a_world_of_one_host_is_silent(session):
    assert not said(traced, everything)


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

    traced(lambda x: jax_passing.psum(x, "e"), "e")
    (ended,) = said(inside.end, "rank 0 of 2", ("d", "i"), 5)
    assert "only process_sum, barrier or on_rank_zero went over the hosts" in str(ended.message)
    assert "declares 'd', 'i'. What stayed inside this host: jax.lax.psum over 'e' at test" in str(ended.message)
    assert "; what jax_passing does over 'e' at test_lax_over_hosts.py:" in str(ended.message)

    assert not said(inside.end, "rank 0 of 2", ("d", "i"), 6)  # one more, of a program


def test_functions_of_jax_are_what_they_were_for_everybody_else(session):
    assert pickle.loads(pickle.dumps(pmean)) is pmean is jax.lax.pmean
    with pytest.raises(TypeError, match="axis_name"):
        pmean(X)


def test_without_session():
    with pytest.raises(NotInitializedError, match="lax_over_hosts"), jax_passing.lax_over_hosts():
        pass


@pytest.mark.parametrize("fast_variance", [True, False])
def test_batch_norm_of_linen(session, fast_variance, check_vma):
    linen = pytest.importorskip("flax.linen")
    norm = linen.BatchNorm(use_running_average=False, axis_name="d", use_fast_variance=fast_variance, momentum=0.9)
    alone = norm.clone(axis_name=None)
    variables = alone.init(jax.random.key(0), X)

    def loss_of(norm, params, x):
        y, updates = norm.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return (jnp.sin(3 * y) * x).sum(), updates

    def step(params, x):
        def loss_of_cast(params):
            return loss_of(norm, jax_passing.pvary(params, "d"), x)

        (loss, updates), grads = jax.value_and_grad(loss_of_cast, has_aux=True)(params)
        return jax_passing.psum(loss, "d"), updates, grads

    program = jax.shard_map(step, mesh=mesh_of(), in_specs=(P(), P("d")), out_specs=P(), check_vma=check_vma)
    with jax_passing.lax_over_hosts():
        loss, updates, grads = jax.jit(program)(variables["params"], X)
    (expected, stats), slopes = jax.value_and_grad(lambda p: loss_of(alone, p, X), has_aux=True)(variables["params"])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        (loss, updates, grads),
        (expected, stats, slopes),
    )


def test_batch_norm_of_nnx(session):
    nnx = pytest.importorskip("flax.nnx")
    norm, alone = (nnx.BatchNorm(3, axis_name=axis, rngs=nnx.Rngs(0)) for axis in ("d", None))
    graph, state = nnx.split(norm)

    def step(state, x):
        layer = nnx.merge(graph, state)
        y = layer(x)
        return y, nnx.state(layer)

    program = jax.shard_map(step, mesh=mesh_of(), in_specs=(P(), P("d")), out_specs=(P("d"), P()), check_vma=False)
    with jax_passing.lax_over_hosts():
        y, state = jax.jit(program)(state, X)
    np.testing.assert_allclose(y, alone(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(nnx.merge(graph, state).var[...], alone.var[...], rtol=1e-5)
