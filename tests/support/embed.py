"""`python -m tests.support.embed`: `cl embed` in parts of 64 images instead of thousands."""

from cl.commands import embed_command
from cl.commands.jobs import embedding

embedding.PART, embedding.BATCH = 64, 32
embedding.FEW = 0  # start data workers for any number of images

if __name__ == "__main__":
    embed_command()
