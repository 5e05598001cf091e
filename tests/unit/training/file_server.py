"""A real HTTP server on this machine that serves a file whole, damaged or in parts, as requested."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; the server's answer replies to it."""

    server: FileServer

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.server.answer(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests ask ``paths`` instead."""

    def head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()


class FileServer(ThreadingHTTPServer):
    """Gives each request one answer, and keeps the paths that were requested."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer = answer
        self.paths: list[str] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


def gives(content: bytes, length: int | None = None) -> Answer:
    """A file; with a length, the connection ends before so many bytes."""

    def answer(request: Request) -> None:
        request.head(200, length or len(content))
        request.wfile.write(content)

    return answer


def status(code: int) -> Answer:
    """No file."""
    return lambda request: request.head(code, 0)


def silent(request: Request) -> None:
    """A connection that stays open without an answer."""
    request.server.ended.wait(30)


@contextmanager
def serving(answer: Answer) -> Iterator[FileServer]:
    """A server for the length of a with statement."""
    server = FileServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
