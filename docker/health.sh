#!/usr/bin/env bash
# Check that a container can still work: its folder responds and is writable, and its GPUs respond.
set -euo pipefail
timeout 10 test -w . || { echo "$PWD does not respond or is not writable"; exit 1; }
[[ ! -e /dev/nvidiactl ]] || timeout 10 nvidia-smi --list-gpus
