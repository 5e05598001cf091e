"""A real HTTP server on this machine that serves a file whole, damaged or in parts, as requested."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request(BaseHTTPRequestHandler):
    """One request, which is answered as the server says."""

    server: FileServer

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.server.status is None:
            self.server.ended.wait(30)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(self.server.length))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests ask ``paths`` instead."""


class FileServer(ThreadingHTTPServer):
    """Gives each request one answer, and keeps the paths that were requested."""

    daemon_threads = True

    def __init__(self, content: bytes, status: int | None, length: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.content, self.status, self.length = content, status, length or len(content)
        self.paths: list[str] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serving(
    content: bytes = b"", status: int | None = 200, length: int | None = None
) -> Iterator[FileServer]:
    """A server for the length of a with statement.

    Args:
        content: Of the file.
        status: Of the answer; None for a connection that stays open without one.
        length: Where the connection ends before so many bytes.
    """
    server = FileServer(content, status, length)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
