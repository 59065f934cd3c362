#!/bin/bash
# Checks everything: bash tests/check.sh. With --fast (for every commit): lint and unit tests only, built incrementally.
#
# Everything it makes lies in build/check; nothing outside the repository changes but missing Debian packages, which
# it installs. All stages run even if one fails; the last line counts them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fast=false
case "${1:-}" in
  --fast) fast=true ;;
  "") ;;
  *) echo "usage: bash tests/check.sh [--fast]" >&2 && exit 2 ;;
esac

work=$PWD/build/check
oldest=$work/oldest  # the virtual environment with the oldest supported jaxlib, and all tools
export PIP_DISABLE_PIP_VERSION_CHECK=1 CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
# The installed package is tested: the current folder must not come before it.
export PYTHONSAFEPATH=1
not_slow=()
if $fast; then not_slow=(-m "not slow"); fi

# --- stages

debian_packages() {
  local wanted=(g++ cmake ninja-build python3-venv python3-dev libgtest-dev libbenchmark-dev clang libbpf-dev) missing=() package
  $fast || wanted+=(iproute2 tshark bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib)
  for package in "${wanted[@]}"; do
    dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  local sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Makes the virtual environment $1 with interpreter $2.
make_venv() { [ -x "$1/bin/pip" ] || "$2" -m venv --clear "$1"; }

# Builds the wheel for the Python of virtual environment $1 into the folder $2, as users do: isolated.
build_wheel() { rm -rf "$2" && "$1/bin/pip" wheel --quiet --no-deps --wheel-dir "$2" .; }

# Installs the wheel in folder $2 into virtual environment $1, with what else is named.
install_wheel() {
  local venv=$1 wheel
  wheel=$(echo "$2"/jax_passing-*.whl)
  "$venv/bin/pip" install --quiet "$wheel[test]" "${@:3}"
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"  # the same version may be there already
  "$venv/bin/python" -c 'import jaxlib, platform; print("Python", platform.python_version(), "jaxlib", jaxlib.__version__)'
}

wheel_on_oldest_jaxlib() {
  make_venv "$oldest" python3
  local requirements
  requirements=$(python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
  "$oldest/bin/pip" install --quiet $requirements
  if $fast; then
    rm -rf "$work/wheel"
    "$oldest/bin/pip" wheel --quiet --no-deps --no-build-isolation --config-settings=build-dir="$work/wheel-build" \
      --wheel-dir "$work/wheel" .
  else
    build_wheel "$oldest" "$work/wheel"
  fi
  install_wheel "$oldest" "$work/wheel" jax==0.10.0 jaxlib==0.10.0 "$(echo "$work"/wheel/*.whl)[lint,examples]"
}

lint() {
  "$oldest/bin/ruff" check .
  "$oldest/bin/ruff" format --check .
  "$oldest/bin/mypy" --python-executable "$oldest/bin/python"
  "$oldest/bin/lint-imports" --no-cache
  git ls-files '*.h' '*.c' '*.cc' | xargs "$oldest/bin/clang-format" --dry-run -Werror
  git ls-files '*.sh' .ci/run | xargs -n1 bash -n
  # A C++ test that nobody builds would pass unseen.
  local test name
  for test in tests/xla_ffi/*/*_test.cc; do
    name=$(basename "$test" .cc)
    grep -q "/$name " xla_ffi/CMakeLists.txt || { echo "$test isn't in xla_ffi/CMakeLists.txt" && return 1; }
    grep -q "\"$name\"" "$(dirname "$test")/BUILD" || { echo "$test isn't in its BUILD" && return 1; }
  done
}

# The site of docs/, in build/check/site. mkdocs reads the sources: nothing has to be installed but itself.
documentation() {
  local requirements
  requirements=$(python3 -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
  "$oldest/bin/pip" install --quiet $requirements
  PATH=$oldest/bin:$PATH NO_MKDOCS_2_WARNING=1 mkdocs build  # with --quiet it wouldn't count the warnings
}

cpp_tests() {
  cmake -S xla_ffi -B "$work/cmake" -G Ninja -DPASSING_BUILD_TESTS=ON -DPython_EXECUTABLE="$oldest/bin/python" >/dev/null
  cmake --build "$work/cmake"
  timeout 1800 ctest --test-dir "$work/cmake" --output-on-failure --no-tests=error -j2 | grep -v ' Passed \| Start '
}

# pytest of virtual environment $1 on the paths that follow, two files at a time.
python_tests() { one_by_one "$1" --numprocesses=2 --dist=loadfile "${@:2}"; }
# The same for tests whose hosts are processes of their own: they need both cores.
one_by_one() { timeout 3000 "$1/bin/pytest" --quiet --durations=5 "${not_slow[@]}" "${@:2}"; }

# The same programs in every run, so that what fails fails again; others by hand, thousands of them.
randomised_search() { timeout 900 "$oldest/bin/python" tests/end_to_end/search.py --programs 300 --seed 1; }

bazel_tests() { timeout 1800 bash tests/bazel.sh; }

# What may differ between versions of JAX: what traces and compiles in one process, and what real hosts compute.
tests_of_another_jax() {
  python_tests "$1" tests/jax_passing/{test_errors,test_fixed_point,host/test_session,host/test_session_lifetime}.py \
    tests/jax_passing/collective/test_{collectives,hold,lax_over_hosts,lowering,psum,strategies,transforms}.py
  one_by_one "$1" tests/end_to_end/test_sums.py -m "not slow" -k "every_dtype or one_mesh or sums_match"
}

newest_jaxlib() {
  make_venv "$work/newest" python3
  install_wheel "$work/newest" "$work/wheel" --upgrade jax jaxlib
  tests_of_another_jax "$work/newest"
}

# $1: version specifier of jax for Python 3.12.
python_3_12() {
  local python venv="$work/python3.12"
  python=$(ls ~/.pyenv/versions/3.12*/bin/python 2>/dev/null | tail -1 || true)
  [ -n "$python" ] || python=$(command -v python3.12 || true)
  if [ -z "$python" ] || ! "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; then
    echo "SKIPPED: no Python 3.12 with headers, neither in ~/.pyenv nor on the PATH"
    return
  fi
  make_venv "$venv" "$python"
  [ -e "$work/wheel-3.12" ] || build_wheel "$venv" "$work/wheel-3.12"
  install_wheel "$venv" "$work/wheel-3.12" --upgrade "jax$1" "jaxlib$1"
  tests_of_another_jax "$venv"
}

quickstart() { timeout 600 bash examples/quickstart.sh; }

# --- running them

passed=0 failed=0
stage() {
  local title=$1 began=$SECONDS status
  echo "=== $title"
  # A subshell of its own, not a condition: otherwise `set -e` would be off inside.
  set +e
  (set -euo pipefail && "${@:2}") </dev/null
  status=$?
  set -e
  if [ $status = 0 ]; then passed=$((passed + 1)) && status=passed; else failed=$((failed + 1)) && status=FAILED; fi
  echo "=== $title: $status in $((SECONDS - began)) s"
}
finish() {
  echo "total: $SECONDS s"
  echo "$passed passed, $failed failed"
  [ $failed = 0 ]
}

mkdir -p "$work"
rm -rf "$work/wheel-3.12"  # of an earlier run
stage "Debian packages" debian_packages
stage "wheel, installed with the oldest jaxlib" wheel_on_oldest_jaxlib
[ $failed = 0 ] || { finish || exit 1; }
stage "lint" lint
$fast || stage "documentation" documentation
stage "C++ tests" cpp_tests
stage "Python tests" python_tests "$oldest" tests/test_*.py tests/jax_passing tests/conformance
if $fast; then
  stage "P4 for Tofino, interpreted" python_tests "$oldest" tests/p4/test_tna_program.py
else
  stage "P4" python_tests "$oldest" tests/p4
  stage "end to end" one_by_one "$oldest" tests/end_to_end
  stage "randomised search" randomised_search
  stage "Bazel" bazel_tests
  stage "newest jaxlib" newest_jaxlib
  rm -rf "$work/wheel-3.12"
  stage "Python 3.12, jax 0.11" python_3_12 "==0.11.*"
  stage "Python 3.12, newest jax" python_3_12 ""
  stage "quickstart" quickstart
fi
finish
