#!/bin/bash
# From a fresh Debian 12 to a model trained on two hosts: installs what is missing, builds, trains. Two to five minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_venv() { python3 -c 'import ensurepip, venv'; }
has_headers() { python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; }

missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v python3 >/dev/null || missing+=(python3)
has_venv 2>/dev/null || missing+=(python3-venv)
has_headers 2>/dev/null || missing+=(python3-dev)
if [ ${#missing[@]} -gt 0 ]; then
  echo "== installing ${missing[*]}"
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

[ -x .venv/bin/pip ] || python3 -m venv .venv
echo "== building jax-passing and installing it with JAX, Flax, Optax and scikit-learn in .venv"
.venv/bin/pip install --quiet --disable-pip-version-check '.[examples]'

echo "== training on two hosts of two devices each"
.venv/bin/jax-passing run --hosts 2 --devices-per-host 2 examples/train_digits.py
