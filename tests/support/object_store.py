"""A local object store that speaks S3, whose delays and failures tests choose."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "bucket"


class Quiet(WSGIRequestHandler):
    """Logs nothing."""

    def log(self, *arguments: Any) -> None:
        pass


class ObjectStore:
    """Answers after `delay` seconds, and the next `failures` requests with an error.

    requests: method and path of each request so far.
    """

    def __init__(self) -> None:
        self._answer = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=Quiet)
        self._lock = threading.Lock()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.delay, self.failures = 0.0, 0
        self.requests: list[tuple[str, str]] = []
        threading.Thread(target=self._server.serve_forever, daemon=True, args=(0.02,)).start()

    def _serve(self, environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(self.delay)
        with self._lock:
            self.requests.append((environment["REQUEST_METHOD"], environment["PATH_INFO"]))
            self.failures, failing = max(0, self.failures - 1), self.failures > 0
        if failing:
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        return self._answer(environment, start)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store with one empty bucket, which s3:// URLs of this process and its children refer to."""
    store = ObjectStore()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables(store).items():
            patched.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield store
        fsspec.filesystem("s3").rm(BUCKET, recursive=True)
        fsspec.filesystem("s3").clear_instance_cache()
    store.close()


def variables(store: ObjectStore) -> dict[str, str]:
    """What s3fs needs to find the store."""
    return {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",  # so that it is ours to try again
    }
