# shellcheck shell=sh
# The first command of a run: DVC calls plain `python`, which only exists once the environment is on the path.
if ! command -v python > /dev/null; then
    echo "There is no python on the path: run \`make .venv\`, and then \`export PATH=\$PWD/.venv/bin:\$PATH\`." >&2
    exit 1
fi
