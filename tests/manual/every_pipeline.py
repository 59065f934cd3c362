"""The gradients of every schedule, in every number of stages, of every model.

    python tests/manual/every_pipeline.py [MODEL...]

The suite tries each model, number of stages and schedule once, and this program all combinations of them, which takes
a quarter of an hour. Of each it prints how far the gradients are from those of the model itself, and from those that
JAX derives for the stages one after the other, both as shares of the largest gradient, and whether their bits are those
of GPipe.
"""

import os
import sys
import time
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["JAX_PLATFORMS"] = "cpu"
TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples")]

import jax  # noqa: E402
import numpy as np  # noqa: E402

from support.jax import model_cases  # noqa: E402
from support.jax.pipeline_cases import ROUNDING, SCHEDULES, STAGES, Case, error  # noqa: E402


def main():
    jax.config.update("jax_disable_most_optimizations", True)  # each program runs a few times only
    wrong = count = 0
    print(f"{'model':10s} stages schedule     of the model  of GPipe's autodiff  bits    CPU-seconds")
    for name in sys.argv[1:] or model_cases.SMALL:
        for stages in STAGES:
            case, bits = Case(name, stages), None
            whole, whole_gradients = case.unpartitioned(case.params, case.batch)
            _, derived = case.through_gpipe
            for schedule in SCHEDULES:
                began_s = time.process_time()
                result, gradients = case.pipeline(schedule)(case.params, case.batch)
                of_model, of_gpipe = error(gradients, whole_gradients), error(gradients, derived)
                bits = bits or [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
                pairs = zip(jax.tree.leaves(gradients), bits, strict=True)
                has_bits = all(np.array_equal(one, other) for one, other in pairs)
                is_right = of_model <= 1e-5 and of_gpipe <= ROUNDING and error(result, whole) <= 1e-5
                is_right &= has_bits or schedule == "zb-h1"
                count, wrong = count + 1, wrong + (not is_right)
                print(
                    f"{name:10s} {stages:6d} {schedule:12s} {of_model:12.1e}  {of_gpipe:19.1e}  "
                    f"{'equal' if has_bits else 'others':6s} {time.process_time() - began_s:12.1f}"
                    f"{'' if is_right else '  WRONG'}",
                    flush=True,
                )
    print(f"{count} pipelines, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
