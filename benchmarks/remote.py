"""Reading shards over local HTTP, side by side with reading them from disk.

`python -m benchmarks.remote [images]`: JPEGs of about 83 kB in shards of 1,000, read in the order of an
epoch. The server is a separate process that answers range requests from the page cache.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.data.cache import Cache
from cl.data.order import CHUNK, epoch_order
from cl.data.reader import Reader
from cl.images.image import Image, Splits
from cl.shards import writing
from cl.shards.survey import Team
from cl.sources import Storage

BATCH, AHEAD = 256, 8  # images, batches

SERVER = """
import os, sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments): pass

    def answer(self):
        with open(sys.argv[1] + self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            span = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=")
            start, stop = (int(x) for x in span.split("-"))
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Length", str(stop + 1 - start))
            self.send_header("Content-Range", f"bytes {start}-{stop}/{size}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.flush()
                while start <= stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop + 1 - start)

    do_HEAD = do_GET = answer

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def main() -> None:
    images = int(sys.argv[1]) if len(sys.argv) > 1 else 4096
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards(folder, images)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder / "shards")], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            compare(folder, url)
        finally:
            server.kill()
            server.wait()


def shards(folder: Path, images: int) -> None:
    rng = np.random.default_rng(0)
    Picture.fromarray(rng.integers(0, 255, (304, 304, 3), dtype=np.uint8)).save(
        folder / "image", "JPEG", quality=90
    )
    listed = [Image(f"{number:07d}", folder / "image", 0) for number in range(images)]
    storage = Storage(
        shard_images=1000,
        encode="copy",
        shrink=None,
        quality=90,
        verify=False,
        upright=False,
        percentiles=(0.1, 99.9),
        tile=None,
        deduplicate=False,
        store=None,
    )
    writing.write(Splits(["x"], listed, listed[:1]), "test", storage, folder / "shards", Team(2))


def compare(folder: Path, url: str) -> None:
    samples = len(Reader(folder / "shards", "train"))
    order = epoch_order(samples, 0, 0)[0:samples]
    print("                                  images/s     MB/s   chunks/s")
    for repeat in (1, 2):
        cache = Cache(folder / f"cache{repeat}", 10**12)
        for name, reader, ahead in (
            ("local", Reader(folder / "shards", "train"), 0),
            (
                "remote, cold",
                Reader(folder / "shards", "train", url, Cache(folder / f"other{repeat}", 10**12)),
                0,
            ),
            ("remote, cold, read ahead", Reader(folder / "shards", "train", url, cache), AHEAD),
            ("remote, cached", Reader(folder / "shards", "train", url, cache), AHEAD),
        ):
            seconds = read(reader, order, ahead)
            images = len(reader) / seconds
            megabytes = sum(shard.bytes for shard in reader.manifest.splits["train"].shards) / 1e6 / seconds
            print(f"{name:30} {images:11.0f} {megabytes:8.0f} {images / CHUNK:10.1f}", flush=True)


def read(reader: Reader, order: np.ndarray, ahead: int) -> float:
    """Seconds to read all images in this order, fetching `ahead` batches in advance."""
    began = time.perf_counter()
    for start in range(0, len(reader), BATCH):
        if ahead and start + BATCH < len(reader):
            reader.prefetch(order[start + BATCH : start + BATCH * (1 + ahead)])
        for position in order[start : start + BATCH].tolist():
            bytes(reader.read(position))  # copy: a memory-mapped file is only read when accessed
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
