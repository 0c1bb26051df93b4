"""A real HTTP server on loopback, whose delays, failures and missing features tests choose."""

import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD, with ranges, as the switches of its server say."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the second half of an answer waits for an acknowledgement
    server: "Server"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        here = self.server
        path = Path(here.folder, self.path.lstrip("/"))
        time.sleep(here.delay)
        with here.lock:
            here.requests.append((self.command, self.path, self.headers.get("Range", "")))
            here.failures, failing = max(0, here.failures - 1), here.failures > 0
        if failing or not path.is_file():
            self.send_error(503 if failing else 404)
            return
        content, status = path.read_bytes(), 200
        headers = {"ETag": f'"{path.stat().st_mtime_ns}"'}
        if here.ranges and "Range" in self.headers:
            start, stop = (int(x) for x in self.headers["Range"].removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {start}-{stop}/{len(content)}"
            content, status = content[start : stop + 1], 206
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            with here.lock:
                here.sent += len(content)
            self.wfile.write(content[: len(content) // 2])
            here.go.wait(60)
            here.cuts, self.close_connection = max(0, here.cuts - 1), here.cuts > 0
            if self.close_connection:
                return
            self.wfile.write(content[len(content) // 2 :])


class Server(ThreadingHTTPServer):
    """Serves a folder at `url`.

    go: while it is cleared, answers stop half-way.
    delay: seconds before each answer.
    failures, cuts: how many of the next answers are errors, or end half-way.
    ranges: whether range requests are honoured.
    sent: bytes sent so far.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.url = folder, f"http://127.0.0.1:{self.server_port}"
        self.lock, self.go = threading.Lock(), threading.Event()
        self.go.set()
        self.delay, self.failures, self.cuts, self.ranges, self.sent = 0.0, 0, 0, True, 0
        self.requests: list[tuple[str, str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True, args=(0.02,)).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about clients that were killed."""

    def close(self) -> None:
        self.go.set()
        self.shutdown()
        self.server_close()

    def ranges_sent(self) -> list[tuple[str, str]]:
        """Path and range of each request for a part of a file."""
        return [(path, extent) for command, path, extent in self.requests if command == "GET" and extent]
