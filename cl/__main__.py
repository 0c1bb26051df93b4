"""`python -m cl` is the command `cl`."""

from cl.commands import main

if __name__ == "__main__":
    main(prog_name="cl")
