"""Reading shards over HTTP from this machine, side by side with reading them from its disk.

`python -m benchmarks.remote [images]`: JPEGs of about 83 kB in shards of 1,000, read in the order of an epoch.
The server is a process of its own, which answers range requests from the page cache.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image as Picture

from cl.data.cache import Cache
from cl.data.order import CHUNK, epoch_order
from cl.data.reader import Reader
from cl.shards import writing
from cl.sources import Image, Splits, Storage

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
    storage = Storage(shard_images=1000, encode="copy", shrink=None, quality=90, verify=False, upright=False)
    writing.write(
        Splits(["x"], listed, listed[:1]), "test", storage, folder / "shards", lambda done: None, workers=2
    )


def compare(folder: Path, url: str) -> None:
    samples = len(Reader(folder / "shards", "train"))
    order = epoch_order(samples, 0, 0)[0:samples]
    print("                                  images/s     MB/s   pieces/s")
    for again in (1, 2):
        cache = Cache(folder / f"cache{again}", 10**12)
        for name, reader, ahead in (
            ("local", Reader(folder / "shards", "train"), 0),
            ("remote, cold", Reader(url, "train", Cache(folder / f"alone{again}", 10**12)), 0),
            ("remote, cold, read ahead", Reader(url, "train", cache), AHEAD),
            ("remote, in the cache", Reader(url, "train", cache), AHEAD),
        ):
            count, seconds = len(reader), timed(lambda reader=reader, ahead=ahead: read(reader, order, ahead))
            size = reader.manifest.splits["train"].shards
            megabytes = sum(shard.bytes for shard in size) / 1e6
            print(
                f"{name:30} {count / seconds:11.0f} {megabytes / seconds:8.0f} {count / CHUNK / seconds:10.1f}",
                flush=True,
            )


def read(reader: Reader, order, ahead: int) -> None:  # type: ignore[no-untyped-def]
    for start in range(0, len(reader), BATCH):
        if ahead and start + BATCH < len(reader):
            reader.ahead(order[start + BATCH : start + BATCH * (1 + ahead)])
        for position in order[start : start + BATCH].tolist():
            bytes(reader.read(position))  # a local one is not read before it is looked at


def timed(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
