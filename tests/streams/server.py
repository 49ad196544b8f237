"""A real web server on this machine, with the manners and the vices of real ones."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `files` by name; `requests` keeps (name, Range) of every request.

    Attributes:
        ranges: whether it can resume.
        cut: break the connection after so many bytes of each answer.
        version: the ETag; None: it sends no mark of a version.
    """

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.ranges = True
        self.cut: int | None = None
        self.version: str | None = '"one"'
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def url(self, name):
        return f"http://127.0.0.1:{self._http.server_port}/{name}"

    def answer(self, handler):
        name, wanted = handler.path.lstrip("/"), handler.headers.get("Range")
        self.requests.append((name, wanted))
        if name not in self.files:
            handler.send_error(404)
            return
        content, start = self.files[name], 0
        if wanted and self.ranges and handler.headers.get("If-Range") == self.version:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                handler.send_error(416)
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        if self.version is not None:
            handler.send_header("ETag", self.version)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        rest = content[start:]
        handler.wfile.write(rest if self.cut is None else rest[: self.cut])

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
