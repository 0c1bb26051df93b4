#!/bin/sh
# Complete an environment: set_up.sh VENV PROJECT, both absolute. Python then finds `cl` also where a folder has this name, as in the
# folder that contains a clone; and `dvc` is pipeline/composition/dvc_program.py.
set -eu
mkdir -p "$1/importable"
ln -sfn "$2/cl" "$1/importable/cl"
packages=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$1/importable" > "$packages/importable.pth"
printf '#!/bin/sh\nexec "%s" -P "%s" "$@"\n' "$1/bin/python" "$2/pipeline/composition/dvc_program.py" > "$1/bin/dvc"
