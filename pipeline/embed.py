"""embed: replaced by the command `cl embed`."""

import sys

if __name__ == "__main__":
    sys.exit("python -m pipeline.embed is now the command `cl embed`; see `cl embed --help`")
