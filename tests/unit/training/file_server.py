"""A real HTTP server on this machine that serves a file whole, damaged or in parts, as requested."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; the server's next answer replies to it."""

    server: FileServer

    def do_GET(self) -> None:
        self.server.ranges.append(self.headers.get("Range"))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests ask ``ranges`` instead."""

    def head(self, status: int, length: int | None, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()

    def rest(self) -> tuple[bytes, dict[str, str]]:
        """What is asked for, and the header that says which part it is."""
        content = self.server.content
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked is None:
            return content, {}
        begin = int(asked[1])
        return content[begin:], {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}


class FileServer(ThreadingHTTPServer):
    """Gives one content, by a list of answers; the last one stays."""

    daemon_threads = True

    def __init__(self, content: bytes, answers: Sequence[Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.content = content
        self.answers = list(answers)
        self.ranges: list[str | None] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


def good(request: Request) -> None:
    """The file, or the part asked for."""
    rest, headers = request.rest()
    if not rest:
        request.head(416, 0)
        return
    request.head(206 if headers else 200, len(rest), headers)
    request.wfile.write(rest)


def whole(request: Request) -> None:
    """The file, whatever part is asked for."""
    request.head(200, len(request.server.content))
    request.wfile.write(request.server.content)


def cut_after(count: int) -> Answer:
    """So many bytes, then the line is cut."""

    def answer(request: Request) -> None:
        rest, headers = request.rest()
        request.head(206 if headers else 200, len(rest), headers)
        request.wfile.write(rest[:count])

    return answer


def status(code: int) -> Answer:
    """No file."""
    return lambda request: request.head(code, 0)


def page(request: Request) -> None:
    """What a captive portal says."""
    content = b"<!DOCTYPE html><html><body>Log in first</body></html>"
    request.head(200, len(content), {"Content-Type": "text/html; charset=utf-8"})
    request.wfile.write(content)


def gives(content: bytes, content_type: str = "application/gzip") -> Answer:
    """Other bytes, as if they were the file."""

    def answer(request: Request) -> None:
        request.head(200, len(content), {"Content-Type": content_type})
        request.wfile.write(content)

    return answer


def silent(request: Request) -> None:
    """A line that stays open and says nothing."""
    request.server.ended.wait(30)


def dribble(seconds: float, count: int = 1) -> Answer:
    """A few bytes now and then."""

    def answer(request: Request) -> None:
        rest, headers = request.rest()
        request.head(206 if headers else 200, len(rest), headers)
        for begin in range(0, len(rest), count):
            request.wfile.write(rest[begin : begin + count])
            request.wfile.flush()
            if request.server.ended.wait(seconds):
                return

    return answer


@contextmanager
def serving(content: bytes, *answers: Answer) -> Iterator[FileServer]:
    """A server for the length of a with statement."""
    server = FileServer(content, answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
