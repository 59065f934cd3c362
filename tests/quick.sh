# The stages of `bash tests/check.sh --quick`, which sources this.

# A virtual environment in which jax_passing is this folder, with the C++ parts beside it; all else is linked to.
# It is made again where C++, or the names of the modules, have changed: a change of Python needs nothing.
editable() {
  [ "$oldest/installed" -nt pyproject.toml ] || wheel
  local modules=$quick/modules site packages
  find jax_passing -name '*.py' | sort >"$work/modules"
  if cmp -s "$work/modules" "$modules" && [ -z "$(find xla_ffi CMakeLists.txt pyproject.toml -newer "$modules")" ]; then
    return
  fi
  [ -x "$quick/bin/python" ] || python3 -m venv --without-pip "$quick"
  site=$(echo "$quick"/lib/python3*/site-packages)
  find "$site" -maxdepth 1 -type l -delete
  for packages in "$oldest"/lib/python3*/site-packages/* "$work"/wheel-environment/lib/python3*/site-packages/*; do
    case ${packages##*/} in jax_passing*) continue ;; esac
    [ -e "$site/${packages##*/}" ] || ln -sf "$packages" "$site"
  done
  "$quick/bin/python" -m pip install --quiet --no-deps --no-build-isolation --force-reinstall \
    --config-settings=build-dir="$work/editable-build" --editable .
  cp "$work/modules" "$modules"
}

# Since the branch left main, or, on main, since HEAD: committed or not.
changed_files() {
  git diff --name-only --no-renames --diff-filter=d "$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)"
  git ls-files --others --exclude-standard
}

# The C++ tests of the rooms that changed.
changed_cpp() {
  local tests
  tests=$(changed_files | sed -nE 's#^(tests/)?xla_ffi/(host/transport|wire|net|host|switch|cuda|ffi|mpi)/.*#\2_test#p' | sort -u)
  [ -n "$tests" ] || { echo "nothing has changed that has C++ tests" && return; }
  tests=${tests//\//_}
  build_in cmake "$tests"
  echo "$tests" | xargs -I{} -P2 timeout 80 "$work/cmake/{}" --gtest_brief=1
}

# The Python tests of what changed: first those that changed themselves or are named like a module that did, then those
# of its room. Those for which the time doesn't suffice are left out, and counted.
changed_python() {
  local files rooms=() first=(tests/test_{directions,words}.py) file folder left
  files=$(changed_files)
  for file in $files; do
    case $file in
      tests/end_to_end/* | tests/p4/*) echo "$file isn't tried: bash tests/check.sh end_to_end p4" ;;
      tests/*test_*.py) first+=("$file") ;;
      jax_passing/*.py)
        folder=tests/$(dirname "${file/#jax_passing\/conformance\/*/conformance/x}")
        [ ! -e "$folder/test_$(basename "$file")" ] || first+=("$folder/test_$(basename "$file")")
        while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
        [ "$folder" = tests/jax_passing ] || rooms+=("$folder")
        ;;
    esac
  done
  left=$((budget_s - SECONDS - 5))
  [ $left -gt 40 ] || left=40  # the environment had to be made first
  [ ${#rooms[@]} = 0 ] || mapfile -t rooms < <(printf '%s\n' "${rooms[@]}" | sort -u)
  PASSING_TESTS_S=$left compiling_fast timeout $((left + 60)) "$quick/bin/python" -m pytest --quiet \
    --numprocesses=2 --maxfail=20 -m "not slow" "${first[@]}" "${rooms[@]}"
}
