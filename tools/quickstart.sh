#!/usr/bin/env bash
# From a bare Debian or Ubuntu to an answer: installs a compiler and kvart (into .venv), fetches the model (491 MB), runs it.
#   tools/quickstart.sh ["PROMPT"]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

model=qwen2.5-coder-0.5b
prompt=${1:-"# Tells whether a number is prime.
def is_prime(n):"}

# The index that pip asks may be on https.
apt_install g++ ca-certificates
make_venv
echo "Building kvart (a few minutes)"
.venv/bin/python -m pip install --quiet .
.venv/bin/kvart pull "$model"
printf '\n%s' "$prompt"
.venv/bin/kvart run "$model" "$prompt" --max-tokens 96
echo
echo "Next: .venv/bin/kvart chat $model"
