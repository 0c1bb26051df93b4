#!/bin/sh
# Set up an environment: importable.sh VENV PROJECT, both absolute. Python then finds `cl` also where a folder has this name, as in the
# folder that contains a clone; and `dvc exp run` takes names as typed (typed_names.py).
set -eu
mkdir -p "$1/importable"
ln -sfn "$2/cl" "$1/importable/cl"
ln -sfn "$2/pipeline/support/typed_names.py" "$1/importable/typed_names.py"
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$1/importable" \
  'import sys; getattr(sys, "argv", [""])[0].endswith("/dvc") and __import__("typed_names").quote_for_dvc()' \
  > "$packages/importable.pth"
