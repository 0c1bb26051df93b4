"""Local servers, of a folder and of an object store, whose delays, failures and features tests choose."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from werkzeug.exceptions import NotFound
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "bucket"
Start = Callable[[str, list[tuple[str, str]]], object]


class Quiet(WSGIRequestHandler):
    """Logs nothing, and sends each part of an answer at once."""

    disable_nagle_algorithm = True

    def log(self, *arguments: Any) -> None:
        pass


class LocalServer:
    """At `url`, answers after `delay` seconds, and the next `failures` requests with an error.

    requests: method, path and range of each request so far.
    """

    def __init__(self, answer: Callable[[dict[str, Any], Start], Iterable[bytes]]) -> None:
        self._answer = answer
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=Quiet)
        self.lock, self.url = threading.Lock(), f"http://127.0.0.1:{self._server.server_port}"
        self.delay, self.failures = 0.0, 0
        self.requests: list[tuple[str, str, str]] = []
        threading.Thread(target=self._server.serve_forever, daemon=True, args=(0.02,)).start()

    def _serve(self, given: dict[str, Any], start: Start) -> Iterable[bytes]:
        time.sleep(self.delay)
        with self.lock:
            self.requests.append((given["REQUEST_METHOD"], given["PATH_INFO"], given.get("HTTP_RANGE", "")))
            self.failures, failing = max(0, self.failures - 1), self.failures > 0
        if failing:
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return self._answer(given, start)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Server(LocalServer):
    """Serves the files of a folder.

    go: while it is cleared, answers stop half-way.
    cuts: how many of the next answers end half-way.
    ranges: whether range requests are honoured.
    sent: bytes sent so far.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(self._file)
        self.folder, self.go = folder, threading.Event()
        self.go.set()
        self.cuts, self.ranges, self.sent = 0, True, 0

    def _file(self, given: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = Path(self.folder, given["PATH_INFO"].lstrip("/"))
        if not path.is_file():
            return NotFound()(given, start)  # type: ignore[arg-type]
        content, status = path.read_bytes(), "200 OK"
        headers = [("ETag", f'"{path.stat().st_mtime_ns}"')]
        if self.ranges and (extent := given.get("HTTP_RANGE")):
            first, stop = (int(x) for x in extent.removeprefix("bytes=").split("-"))
            headers.append(("Content-Range", f"bytes {first}-{stop}/{len(content)}"))
            content, status = content[first : stop + 1], "206 Partial Content"
        start(status, [*headers, ("Content-Length", str(len(content)))])
        return self._halves(content) if given["REQUEST_METHOD"] == "GET" else []

    def _halves(self, content: bytes) -> Iterator[bytes]:
        with self.lock:
            self.sent += len(content)
        yield content[: len(content) // 2]
        self.go.wait(60)
        with self.lock:
            self.cuts, cut = max(0, self.cuts - 1), self.cuts > 0
        if not cut:
            yield content[len(content) // 2 :]

    def ranges_sent(self) -> list[tuple[str, str]]:
        """Path and range of each request for a part of a file."""
        return [(path, extent) for method, path, extent in self.requests if method == "GET" and extent]

    def close(self) -> None:
        self.go.set()
        super().close()


@contextmanager
def object_store() -> Iterator[LocalServer]:
    """A store with one empty bucket, which s3:// URLs of this process and its children refer to."""
    from moto.server import DomainDispatcherApplication, create_backend_app  # slow to import

    store = LocalServer(DomainDispatcherApplication(create_backend_app))
    variables = {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",  # so that it is ours to try again
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield store
        fsspec.filesystem("s3").rm(BUCKET, recursive=True)
        fsspec.filesystem("s3").clear_instance_cache()
    store.close()
