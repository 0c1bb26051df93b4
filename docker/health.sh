#!/usr/bin/env bash
# Whether a container can still work: its folder answers and can be written to, and so do the GPUs that it was given.
set -euo pipefail
timeout 10 test -w . || { echo "$PWD does not answer, or cannot be written to"; exit 1; }
[[ ! -e /dev/nvidiactl ]] || timeout 10 nvidia-smi --list-gpus
