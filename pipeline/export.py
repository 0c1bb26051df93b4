"""export: replaced by the command `cl export`."""

import sys

if __name__ == "__main__":
    sys.exit("python -m pipeline.export is now the command `cl export`; see `cl export --help`")
