#!/bin/bash
# Builds and tests the C++ targets with Debian's Bazel 4 (bazel-bootstrap), which has no registry and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."

stubs=$PWD/build/bazel/stubs
output=$PWD/build/bazel/output
rules=/usr/share/bazel/rules
mkdir -p "$stubs/rules_cc/cc" "$stubs/remote_coverage_tools" "$output"

# rules_cc: what our BUILD files and Bazel's own tools load, straight from the rules that Bazel 4 has built in.
echo 'workspace(name = "rules_cc")' >"$stubs/rules_cc/WORKSPACE"
touch "$stubs/rules_cc/BUILD" "$stubs/rules_cc/cc/BUILD"
for rule in cc_binary cc_import cc_library cc_proto_library cc_test cc_toolchain cc_toolchain_suite; do
  echo "$rule = native.$rule"
done >"$stubs/rules_cc/cc/defs.bzl"

# Every test rule names the coverage tools; nothing here asks for coverage.
echo 'workspace(name = "remote_coverage_tools")' >"$stubs/remote_coverage_tools/WORKSPACE"
echo 'filegroup(name = "coverage_report_generator", visibility = ["//visibility:public"])' \
  >"$stubs/remote_coverage_tools/BUILD"

flags=(
  --override_repository=rules_cc="$stubs/rules_cc"
  --override_repository=remote_coverage_tools="$stubs/remote_coverage_tools"
  --override_repository=rules_java=$rules/java
  --override_repository=rules_proto=$rules/proto
  --nosandbox_debug  # Debian turns it on
)
bazel() { command bazel --output_user_root="$output" "$1" "${flags[@]}" --jobs=2 --noshow_progress "${@:2}"; }
trap 'command bazel --output_user_root="$output" shutdown' EXIT  # no server stays behind

# This tests the BUILD files, so nothing is optimised.
bazel build --copt=-O0 //...
bazel test --copt=-O0 //...
