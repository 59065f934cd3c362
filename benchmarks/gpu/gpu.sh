#!/bin/bash
# Examines jax_passing on a GPU, in ten minutes: bash benchmarks/gpu/gpu.sh [PYTHON...]
#
# Each PYTHON (python3 if none is named) is an interpreter with JAX for CUDA; name several to try several versions of JAX.
# It isn't changed: for each a virtual environment is made in build/gpu, which sees what the interpreter has, and in which
# this checkout is built and installed with what else is missing, from PyPI, or from the folder of wheels that WHEELS
# names; a wheel of jax_passing there is installed as it is. Without a GPU everything runs on CPUs, and the reports say
# what they leave out.
#
# Reports go to REPORT/JAXLIB-VERSION/report.md and report.json, those of a second PYTHON with the same jaxlib to
# REPORT/JAXLIB-VERSION-2; REPORT is build/gpu/report if nothing else is said.
set -euo pipefail
called_from=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

case "${1:-}" in -*) echo "usage: [WHEELS=FOLDER] [REPORT=FOLDER] bash benchmarks/gpu/gpu.sh [PYTHON...]" >&2 && exit 2 ;; esac
absolute() { (cd "$called_from" && realpath -m -- "$1"); }
reports=$(absolute "${REPORT:-$PWD/build/gpu/report}")
pip_options=(--quiet --disable-pip-version-check)
if [ -n "${WHEELS:-}" ]; then
  wheels=$(absolute "$WHEELS")
  [ -d "$wheels" ] || { echo "gpu.sh: WHEELS=$WHEELS is no folder." >&2 && exit 2; }
  pip_options+=(--no-index --find-links "$wheels")
fi
export CXX=${CXX:-g++} CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
unset PYTHONSAFEPATH PYTHONPATH

fail() { echo "gpu.sh: $1" >&2 && return 1; }

is_built() { [ -n "${WHEELS:-}" ] && compgen -G "$wheels/jax_passing-*.whl" >/dev/null; }

# Interpreter $1 must bring what can't be made here; pip names what else is missing.
check() {
  command -v "$1" >/dev/null || fail "there is no $1. Name an interpreter: bash benchmarks/gpu/gpu.sh /path/to/python3.12" || return
  "$1" -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null || fail "$1 isn't Python 3.11 or later." || return
  "$1" -c 'import jax, jaxlib' 2>/dev/null ||
    fail "$1 has no JAX that can be imported. Install it: $1 -m pip install 'jax[cuda13]' (or jax, for CPUs)." || return
  "$1" -m pip --version >/dev/null 2>&1 || fail "$1 has no pip. On Debian: apt-get install python3-pip python3-venv" || return
  is_built && return
  "$1" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    fail "$1 has no headers (Python.h). On Debian: apt-get install python3-dev" || return
  command -v "${CXX%% *}" >/dev/null || fail "there is no $CXX. On Debian: apt-get install g++"
}

# Succeeds if interpreter $1 has all that building takes, so that nothing need be fetched for it.
can_build() {
  "$1" -c '
import importlib.metadata, importlib.util, shutil, sys
missing = [name for name in ("scikit_build_core", "nanobind", "jaxlib") if importlib.util.find_spec(name) is None]
missing += [name for name in ("cmake", "ninja") if not shutil.which(name) and importlib.util.find_spec(name) is None]
if "nanobind" not in missing and importlib.metadata.version("nanobind").split(".")[0] != "3":
    missing.append("nanobind 3")
print(*missing, sep=", ", file=sys.stderr)
sys.exit(bool(missing))' 2>"$2"
}

# Makes a virtual environment for interpreter $1 in folder $2, with this checkout installed.
prepare() {
  local python=$1 folder=$2 missing
  rm -rf "$folder/venv" "$folder/wheel"
  "$python" -m venv --without-pip "$folder/venv"
  # --system-site-packages wouldn't see those of an interpreter that is of a virtual environment itself.
  "$python" -c '
import site, sys
from pathlib import Path
(packages,) = Path(sys.argv[1]).glob("lib/python*/site-packages")
seen = [path for path in [*site.getsitepackages(), site.getusersitepackages()] if Path(path).is_dir()]
packages.joinpath("seen.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in seen))' \
    "$folder/venv"
  local inside=$folder/venv/bin/python
  local pip=("$python" -m pip --python "$inside")

  if [ -n "${WHEELS:-}" ] && ! is_built; then
    # Whatever is there of what building takes; what isn't, is named below.
    local tool
    for tool in 'scikit-build-core>=1.0' 'nanobind>=3.0,<4' cmake ninja; do
      "${pip[@]}" install "${pip_options[@]}" "$tool" >/dev/null 2>&1 || true
    done
  fi
  missing=$folder/missing
  if is_built && "${pip[@]}" download "${pip_options[@]}" --no-deps --dest "$folder/wheel" jax_passing; then
    echo "== taking the wheel of jax_passing in $WHEELS"
  elif can_build "$inside" "$missing"; then
    echo "== building with what is installed, on the headers of the installed jaxlib"
    "${pip[@]}" wheel "${pip_options[@]}" --no-deps --no-build-isolation --wheel-dir "$folder/wheel" .
  else
    echo "== building with what pip brings, as these are missing: $(cat "$missing")"
    "${pip[@]}" wheel "${pip_options[@]}" --no-deps --wheel-dir "$folder/wheel" . ||
      fail "to build, pip must find scikit-build-core, nanobind 3, jaxlib 0.10.0, cmake and ninja: install what is \
missing of them ($(cat "$missing")) for $python, or put wheels of all of them into a folder that WHEELS names."
  fi
  echo "== installing it, with what it needs"
  local wheel
  wheel=$(echo "$folder"/wheel/jax_passing-*.whl)
  # Not scikit-learn of the extra "examples": no part needs it.
  "${pip[@]}" install "${pip_options[@]}" "$wheel" 'flax>=0.12' 'optax>=0.2.5' ||
    fail "what pip names above is missing: install it for $python, or put its wheel into a folder that WHEELS names."
}

LIMIT_S=570 # for all that is done with one interpreter
status=0
declare -A count # of interpreters so far, by jaxlib's version
for python in "${@:-python3}"; do
  case "$python" in */*) python=$(cd "$called_from" && realpath -ms -- "$python") ;; esac  # links are the environment's
  if ! check "$python"; then status=1 && continue; fi
  release=$("$python" -c 'import jaxlib; print(jaxlib.__version__)')
  count[$release]=$((${count[$release]:-0} + 1))
  own=$release
  if [ "${count[$release]}" -gt 1 ]; then own=$release-${count[$release]}; fi
  echo "=== $python, jaxlib $release: $reports/$own"
  SECONDS=0
  folder=$PWD/build/gpu/$own
  mkdir -p "$folder"
  set +e  # a condition would switch it off inside, too
  (set -e && prepare "$python" "$folder")
  prepared=$?
  set -e
  if [ $prepared != 0 ]; then status=1 && continue; fi
  echo "== measuring"
  minutes=$("$python" -c "print(($LIMIT_S - $SECONDS) / 60)")
  "$folder/venv/bin/python" benchmarks/gpu/gpu.py --report "$reports/$own" --minutes "$minutes" || status=1
done
exit $status
