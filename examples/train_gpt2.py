"""Trains GPT-2 in bfloat16 on text; the hosts' gradients are summed beside the backward pass.

    jax-passing run --hosts 2 examples/train_gpt2.py      # the tiny one, on CPU devices; --size small ... xl for others

Run by itself (python examples/train_gpt2.py) it is the same program in a world of one host. It takes whatever devices
JAX finds. The text is a file (--text), or all sources of Python's standard library; a token is a byte, in every size.
Parameters are kept in float32. A step computes with bfloat16 copies of them, so gradients travel in two bytes each, or
in fewer with --wire-dtype int8; and hosts wait for each other less often with --pace diloco:20. With --shard each
device keeps its part of the parameters and of the optimizer's state alone. --help has more.

At the end rank 0 reports:

- held out: the loss on rows of text that is left out of the training, and the step and the time of training after
  which it first fell to --target.
- speed: tokens of all hosts a second, while training, with all that belongs to it.
- state: the bytes of the parameters and of the optimizer's state that a host keeps between two steps, on all of its
  devices together.
- MFU, model FLOP utilisation: the FLOPs that the model needs for these tokens, over the peak of the devices. A token
  needs 6 N + 12 layers x width x context of them, with N parameters (Chowdhery et al., PaLM, JMLR 2023, appendix B).
  The peak is in the data sheet of some GPUs, or given (--peak-tflops), or else that of a matrix product, measured here.
- waiting: the share of a step that is spent for the sums. The same step with sums and without any, of which each device
  uses its own gradients, take turns after the training. If their medians take t and t0 seconds, this is 1 - t0 / t. So
  what the backward pass hides of the sums doesn't count, and what they take from the computation does. Only told
  where `overlap` sums, as it does unless an option gives the sums to the optimizer.
"""

import argparse
import re
import statistics
import sysconfig
import time
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import fewer_bytes
import jax_passing
from jax_passing.optax import deal, gather, part_specs, sharded
from models import gpt2

SIZES = {  # with the learning rates of Brown et al., Language Models are Few-Shot Learners (2020), table 2.1
    "tiny": (gpt2.TINY, 3e-3),
    "small": (gpt2.SMALL, 6e-4),
    "medium": (gpt2.MEDIUM, 3e-4),
    "large": (gpt2.LARGE, 2.5e-4),
    "xl": (gpt2.XL, 2e-4),
}
PEAKS = {  # TFLOP/s of dense bfloat16 in NVIDIA's data sheets, by a part of the device's name: the first that fits
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H200 NVL": 835,
    "H100": 989,
    "H200": 989,
    "A100": 312,
}
WARM_UPS = 3  # steps that compile, and learn the order of sums
ALIKE = ("size", "rows", "steps", "wire_dtype", "powersgd", "pace", "shard", "dtype", "seed")  # of all hosts
PAIRS = 10  # of steps with sums and without, to compare
LOOK_STEPS = 20  # between looks at the validation's loss
TARGET = 2.5
VALIDATION_ROWS, VALIDATION_SHARE = 256, 0.05  # the latter of the text, at its end


def read_text(path):
    if path is not None:  # it may be larger than the memory; an empty file can't be mapped
        return np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    sources = [file for file in files if not {"site-packages", "dist-packages"} & set(file.parts)]
    return np.frombuffer(b"".join(file.read_bytes() for file in sources), np.uint8)


def split(text, context):
    """Returns the text to train on, and the rows of the rest that validate: the same ones in every run."""
    length = context + 1
    held = max(length, int(VALIDATION_SHARE * len(text)))
    training, rest = text[:-held], text[-held:]
    starts = np.linspace(0, held - length, VALIDATION_ROWS).astype(int)
    return training, {"tokens": rest[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}


def batches(text, rows, context, session, seed=0):
    """Yields this host's share of the rows that the seed draws for all hosts."""
    rng, length = np.random.default_rng(seed), context + 1
    while True:
        drawn = rng.integers(0, len(text) - context, session.world_size * rows)
        starts = drawn[session.rank * rows :][:rows]
        yield {"tokens": text[starts[:, np.newaxis] + np.arange(length)].astype(np.int32)}


def difference(session, **given):
    """The first of these values that another host has otherwise than rank 0, for people; None if all are alike. The
    same on all hosts."""
    texts = {name: str(value) for name, value in given.items()}
    own = np.zeros((session.world_size, len(texts)), np.uint32)
    own[session.rank] = [zlib.crc32(text.encode()) for text in texts.values()]
    by_rank = jax_passing.process_sum(own)  # each row is one host's: all others add zeros to it
    for name, column in zip(texts, by_rank.T, strict=True):
        if others := np.flatnonzero(column != column[0]).tolist():
            return f"--{name} of rank {others[0]} isn't that of rank 0; here (rank {session.rank}) it is {texts[name]}"
    return None


def overlap(loss_of):
    """Is jax.value_and_grad over all devices of all hosts: loss and gradients are means."""
    return jax_passing.overlap(loss_of, "d")


def make_step(loss_of, mesh, sums=True, value_and_grad=overlap, dtype="bfloat16", parts=None):
    """A step of training, (state, batch) -> (state, losses of the host's devices), or the same without any sum.

    `parts`: where the state lies if it is dealt. Then copies of the parameters are gathered, and the optimizer gets
    gradients as they are."""

    def step(state, batch):
        halves = jax.tree.map(lambda x: x.astype(dtype), state.params)
        if parts is not None:
            halves = gather(halves, "d")
        # Unless another way is chosen, overlap; or each device's own loss and gradients, which nobody sums.
        loss, grads = (value_and_grad if sums else jax.value_and_grad)(loss_of)(halves, batch)
        if parts is None:
            grads = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
        return state.apply_gradients(grads=grads), loss[None]

    here, split = P() if parts is None else parts, P("d")
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(here, split), out_specs=(here, split), check_vma=sums)
    return jax.jit(mapped, donate_argnums=0)


def measure(steps, state, batch):
    """The median time of each step."""
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-1, PAIRS):
        for name, step in steps.items():
            jax_passing.barrier()  # else a step would wait for what the hosts did before
            began = time.perf_counter()
            state, _ = jax.block_until_ready(step(state, batch))
            if turn >= 0:  # the first one compiles
                times_s[name].append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in times_s.items()}


def peak_flops_of(devices, given):
    """FLOP/s of this host's devices, and who says so."""
    kind = devices[0].device_kind
    if given is not None:
        return given * 1e12 * len(devices), "as given"
    for part, tflops in PEAKS.items():
        if re.search(rf"\b{part}\b(?!.*MIG)", kind):  # not an A1000, nor a slice of a GPU
            return tflops * 1e12 * len(devices), f"data sheet of {kind}"
    size, fastest_s = 1024, np.inf
    for dtype in (jnp.bfloat16, jnp.float32):  # a processor may know only one of them
        x = jnp.ones((size, size), dtype)
        product = jax.jit(jnp.matmul).lower(x, x).compile()
        for _ in range(10):
            began = time.perf_counter()
            product(x, x).block_until_ready()
            fastest_s = min(fastest_s, time.perf_counter() - began)
    # One CPU device has all cores at its disposal, however many devices share them.
    return 2 * size**3 / fastest_s * (1 if devices[0].platform == "cpu" else len(devices)), "of a measured product"


def main(session, given, text):
    config, rate = SIZES[given.size]
    model, devices = gpt2.GPT2(config), jax.local_devices()
    mesh = jax.sharding.Mesh(devices, ("d",))
    rows = given.rows * len(devices)
    training, validation = split(text, config.context)
    own = batches(training, rows, config.context, session, given.seed)
    peak_flops, source = peak_flops_of(devices, given.peak_tflops)

    with_aux = gpt2.loss_of(model)
    adam = optax.adam(optax.cosine_decay_schedule(rate, given.steps))
    if given.shard:  # the optimizer sums, and makes what has travelled wide again
        wide = optax.stateless(lambda grads, _: jax.tree.map(lambda x: x.astype(jnp.float32), grads))
        value_and_grad, optimizer = fewer_bytes.own_gradients("d"), sharded(optax.chain(wide, adam), "d", mesh)
    else:
        value_and_grad, optimizer = fewer_bytes.choose(given, adam, "d")
    validate = jax.jit(lambda params: with_aux(params, validation)[0])
    example = jnp.zeros((1, config.context), jnp.int32)
    params = jax.jit(lambda: model.init(jax.random.key(given.seed), example)["params"])()
    parameter_count = sum(leaf.size for leaf in jax.tree.leaves(params))
    params = jax.device_put(params, jax.sharding.NamedSharding(mesh, P()))
    if given.shard:
        params = deal(params, "d", mesh)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
    specs = part_specs(state, "d")
    state = jax.device_put(state, jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), specs))
    state_bytes = sum(part.data.nbytes for leaf in jax.tree.leaves(state) for part in leaf.addressable_shards)
    steps = {
        name: make_step(
            lambda params, batch: with_aux(params, batch)[0], mesh, sums, value_and_grad, given.dtype,
            specs if given.shard else None,
        )
        for name, sums in (("sums", True), ("no sums", False))
    }  # fmt: skip

    first_loss = last_loss = reached = None
    seconds = 0.0  # neither compiling nor looking counts as training
    began = time.perf_counter()
    for number in range(1, given.steps + 1):
        state, loss = steps["sums"](state, next(own))
        if number == 1 or number % 10 == 0 or number == given.steps:
            last_loss = float(loss.mean())  # on every host: one that doesn't look runs on after another is lost
            first_loss = last_loss if number == 1 else first_loss
            if session.rank == 0:
                print(f"step {number}: loss {last_loss:.4f}", flush=True)
        if number == WARM_UPS:
            jax.block_until_ready(state)
            began = time.perf_counter()
        if number > WARM_UPS and (number % LOOK_STEPS == 0 or number == given.steps):
            jax.block_until_ready(state)
            seconds += time.perf_counter() - began
            whole = gather(state.params, "d", mesh)  # by all hosts
            if session.rank == 0:
                held_out = float(validate(fewer_bytes.trained(given, whole, state.opt_state)))
                if reached is None and held_out <= given.target:
                    reached = number, seconds
            began = time.perf_counter()
    state = fewer_bytes.end(state, mesh, specs)
    stats = session.stats()
    step_s = seconds / (given.steps - WARM_UPS)
    times_s = measure(steps, state, next(own)) if fewer_bytes.overlaps(given) and not given.shard else None
    if session.rank != 0:
        return

    tokens = rows * config.context  # of this host in a step
    token_flops = 6 * parameter_count + 12 * config.layers * config.width * config.context
    first = "never reached" if reached is None else f"first after step {reached[0]}, {reached[1]:.2f} s of training"
    print(f"model    GPT-2 {given.size}, {parameter_count / 1e6:.2f} M parameters; text of {len(text) / 1e6:.1f} MB")
    print(f"devices  {len(devices)} of {devices[0].device_kind} on each of {session.world_size} hosts")
    print(f"loss     {first_loss:.4f} in step 1, {last_loss:.4f} in step {given.steps}")
    print(f"held out {held_out:.4f} is the loss on text not trained on; {given.target:g}: {first}")
    print(f"speed    {session.world_size * tokens / step_s:.0f} tokens/s, {step_s:.4f} s a step")
    print(f"state    {state_bytes / 1e6:.2f} MB on each host")
    print(f"moved    {stats['bytes_sent'] / 1e6:.2f} MB sent by each host")
    print(f"MFU      {tokens * token_flops / step_s / peak_flops:.2%} of {peak_flops / 1e12:.3g} TFLOP/s, {source}")
    if times_s is not None:
        share = 1 - times_s["no sums"] / times_s["sums"]
        apart = f"{times_s['sums']:.4f} s with sums, {times_s['no sums']:.4f} s without any"
        print(f"waiting  {share:.1%} of a step: {apart}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--size", choices=SIZES, default="tiny")
    add("--rows", type=int, default=8, help="of text, of each device in a step; the same on all hosts")
    add("--steps", type=int, default=100, help=f"at least {WARM_UPS + 1}")
    add("--text", type=Path, metavar="FILE", help="to learn (Python's standard library), the same on all hosts")
    add("--peak-tflops", type=float, help="of a device, in bfloat16")
    add("--target", type=float, default=TARGET, help=f"a loss on text not trained on ({TARGET:g})")
    add("--shard", action="store_true", help="each device has its part of parameters and of the optimizer's state")
    fewer_bytes.add_options(parser, dtype="bfloat16")
    given = fewer_bytes.parse(parser)
    if given.shard and not (fewer_bytes.overlaps(given) and given.wire_dtype == "full"):
        parser.error("--shard goes with none of --pace, --powersgd and --wire-dtype")
    if given.steps <= WARM_UPS:
        parser.error(f"--steps {given.steps}: the first {WARM_UPS} aren't timed, so there must be more")
    if given.rows < 1 or (given.peak_tflops is not None and not given.peak_tflops > 0):
        parser.error("--rows and --peak-tflops are above 0")
    text, context = read_text(given.text), SIZES[given.size][0].context
    if len(text) < 2 * (context + 1):
        needs = f"a row takes {context + 1} bytes of text, one to train on and one to validate"
        parser.error(f"{needs}, and there are {len(text)} (--text)")
    # The text may be larger than the memory: its length and its beginning tell it apart.
    told = f"{len(text)} bytes of checksum {zlib.crc32(text[: 2**20])}"
    with jax_passing.init(axis_name="d", seed=given.seed) as session:
        # Fewer rows on one host would have too large a part in the means, and no error would say so.
        unlike = difference(session, text=told, **{name: vars(given)[name] for name in ALIKE})
        if unlike is None:
            main(session, given, text)
    if unlike is not None:  # said only now: a host that leaves a session early ends it for those who don't know yet
        parser.error(f"{unlike}. Give all hosts the same options.")
