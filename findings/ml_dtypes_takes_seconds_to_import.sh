#!/usr/bin/env bash
# Every process that imports JAX imports ml_dtypes. Version 0.7.0 registers a loop for each pair of its dtypes and NumPy's,
# and NumPy compares each new loop with all others. So its import takes 1.4 s on an AMD EPYC (Zen 1), where that of 0.6.0
# takes 0.01 s, and `import jax` (0.10.0) 2.6 s in place of 1.3. In return, a sum of two dtypes has one dtype, whichever
# comes first. With 0.6.0 float8_e4m3 + float8_e5m2fnuz is a float8_e4m3, and the other way round a float8_e5m2fnuz; with
# 0.7.0 both are float32. But bfloat16 + float8_e4m3fn was float32, and is bfloat16 now. Seen with NumPy 2.4.6, Python
# 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/look.py" <<'PYTHON'
import time

import numpy as np

start_s = time.process_time()
import ml_dtypes

took_s = time.process_time() - start_s


def sum_dtype(*names: str) -> str:
    one, other = (np.ones(2, getattr(ml_dtypes, name)) for name in names)
    return (one + other).dtype.name


print(
    f"{1000 * took_s:.0f}",
    sum_dtype("float8_e4m3", "float8_e5m2fnuz"),
    sum_dtype("float8_e5m2fnuz", "float8_e4m3"),
    sum_dtype("bfloat16", "float8_e4m3fn"),
)
PYTHON
declare -A took dtypes
for version in 0.6.0 0.7.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==$version
  "$folder/$version/bin/python" "$folder/look.py" >/dev/null  # so that its files are in the page cache
  read -r "took[$version]" "dtypes[$version]" < <("$folder/$version/bin/python" "$folder/look.py")
  echo "ml_dtypes $version: ${took[$version]} ms to import; sums of two dtypes: ${dtypes[$version]}"
done
((took[0.7.0] > 20 * took[0.6.0])) && [ "${dtypes[0.6.0]}" = "float8_e4m3 float8_e5m2fnuz float32" ] &&
  [ "${dtypes[0.7.0]}" = "float32 float32 bfloat16" ] || {
  echo "the behaviour has changed"
  exit 1
}
