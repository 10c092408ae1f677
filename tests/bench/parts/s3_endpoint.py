"""A quick S3 endpoint for benchmarks: what a transfer calls, kept in files, nothing signed, nothing checked.

moto copies a whole object for every part that is read of it, so that it, and not the client, would be measured.
`python -m tests.bench.parts.s3_endpoint FOLDER` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests.serving import serve

_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    metadata: dict[str, dict[str, str]]

    def do_PUT(self) -> None:
        path, query = self._place()
        if "partNumber" in query:
            path = path.with_name(f"{path.name}.{query['uploadId'][0]}.{int(query['partNumber'][0]):05d}")
        else:
            self.metadata[path.name] = self._claims()
        left, digest = int(self.headers.get("Content-Length", 0)), hashlib.md5(usedforsecurity=False)
        with path.open("wb") as file:
            while left:
                chunk = self.rfile.read(min(left, _CHUNK))
                left -= len(chunk)
                digest.update(chunk)
                file.write(chunk)
        self._answer(200, b"", {"ETag": f'"{digest.hexdigest()}"'})

    def do_POST(self) -> None:
        path, query = self._place()
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "uploads" in query:
            self.metadata[path.name] = self._claims()
            upload = os.urandom(8).hex()
            body = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        else:
            parts = sorted(path.parent.glob(f"{path.name}.{query['uploadId'][0]}.*"))
            # The first part becomes the object, the others are appended to it.
            with parts[0].open("ab") as whole:
                for part in parts[1:]:
                    with part.open("rb") as file:
                        shutil.copyfileobj(file, whole, 1 << 24)
                    part.unlink()
            parts[0].rename(path)
            body = "<CompleteMultipartUploadResult><ETag>x-1</ETag></CompleteMultipartUploadResult>"
        self._answer(200, body.encode())

    def do_HEAD(self) -> None:
        path, _ = self._place()
        if not path.exists():
            self._answer(404, b"")
            return
        self._answer(200, b"", self._of(path), length=path.stat().st_size)

    def do_GET(self) -> None:
        path, query = self._place()
        if "uploads" in query:
            self._answer(200, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")
            return
        size = path.stat().st_size
        asked = _RANGE.match(self.headers.get("Range", ""))
        start, end = (int(asked[1]), int(asked[2] or size - 1)) if asked else (0, size - 1)
        headers = self._of(path) | ({"Content-Range": f"bytes {start}-{end}/{size}"} if asked else {})
        self._answer(206 if asked else 200, b"", headers, length=end - start + 1)
        self.wfile.flush()
        with path.open("rb") as file:
            while start <= end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start + 1)

    def do_DELETE(self) -> None:
        self._place()[0].unlink(missing_ok=True)
        self._answer(204, b"")

    def _place(self) -> tuple[Path, dict[str, list[str]]]:
        split = urlsplit(self.path)
        return self.folder / quote(split.path, safe=""), parse_qs(split.query, keep_blank_values=True)

    def _claims(self) -> dict[str, str]:
        return {name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}

    def _of(self, path: Path) -> dict[str, str]:
        return {"ETag": '"x"', "Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT", **self.metadata.get(path.name, {})}

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code != 204:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A benchmark's requests are not worth a line each."""


def main() -> None:
    Handler.folder, Handler.metadata = Path(sys.argv[1]), {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serve(server)
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
