"""The server of the page, which listens on the loopback interface only."""

import json
import re
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from transom import __version__
from transom.errors import TransomError
from transom.files.message import phrase
from transom.files.regular_files import parse_json
from transom.inspection.messages.tables import ENGLISH, LANGUAGES, in_language, table
from transom.serving.explorer import Explorer

HOST = "127.0.0.1"
"""Address on which the server listens; other machines cannot reach it."""

MAX_BODY = 64 * 2**20
"""Bytes of a request, such as an uploaded picture in base64."""

TIMEOUT = 60
"""Seconds after which a connection that sends nothing is closed."""

PAGE = resources.files("transom.serving") / "page"
"""Folder of the page."""

CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class ExploreServer(ThreadingHTTPServer):
    """Serves the page and its answers at ``http://127.0.0.1:PORT/TOKEN/``.

    Requests with another host, origin or token are refused, so that neither pages of other origins nor other users of the machine can read
    the model or its inputs.

    Attributes:
        explorer: answers the requests.
        token: random part of the address.
    """

    daemon_threads = True

    def __init__(self, explorer: Explorer, port: int = 0) -> None:
        """Bind to a port of the loopback interface; 0 for any that is free.

        Raises:
            OSError: the port is in use.
        """
        self.explorer, self.token = explorer, secrets.token_hex(16)
        super().__init__((HOST, port), _Handler)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Accepted values of the header Host."""
        return tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an internal error; a closed connection is none."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            traceback.print_exc()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: ExploreServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = f"transom/{__version__}", ""
    timeout = TIMEOUT
    disable_nagle_algorithm = True  # a body follows its headers at once; else it waits some 40 ms for their acknowledgement

    def do_GET(self) -> None:
        """Send a file of the page."""
        if (path := self._path()) is None:
            return
        if path == "":
            nonce = secrets.token_urlsafe(16)
            html = (PAGE / "index.html").read_text("utf-8").replace("{nonce}", nonce)
            self._send(HTTPStatus.OK, html.encode(), "text/html", nonce)
        elif path.startswith("messages/") and (language := path.removeprefix("messages/").removesuffix(".json")) in LANGUAGES:
            self._send_json(HTTPStatus.OK, table(language)["explore"])
        elif path in {each.name for each in PAGE.iterdir()}:
            kind = CONTENT_TYPES.get(path[path.rfind(".") :], "application/octet-stream")
            self._send(HTTPStatus.OK, (PAGE / path).read_bytes(), kind)
        else:
            self._send_error(HTTPStatus.NOT_FOUND, "expected a file of the page, found none of this name; open the page again")

    def do_POST(self) -> None:
        """Answer a request of the page."""
        if (path := self._path()) is None or (body := self._body()) is None:
            return
        with self._internal_errors():
            self._answer(path, body)

    def _answer(self, path: str, body: bytes) -> None:
        """Send the answer to a request, or one line that says what is wrong with it; to an array of requests, an array of these."""
        name = path.removeprefix("api/")
        try:
            raw = parse_json(body)
            if name == path:
                raise TransomError("expected a request to api/NAME, found another address; open the page again")
        except TransomError as error:
            self._send_error(HTTPStatus.BAD_REQUEST, error.line)
            return
        except ValueError:
            self._send_error(HTTPStatus.BAD_REQUEST, "expected JSON, found other text; open the page again")
            return
        answers = [self._answer_one(name, each) for each in (raw if isinstance(raw, list) else [raw])]
        status = HTTPStatus.BAD_REQUEST if any("error" in each for each in answers) else HTTPStatus.OK
        self._send_json(status, answers if isinstance(raw, list) else answers[0])

    def _answer_one(self, name: str, body: Any) -> dict[str, Any]:
        """Return the answer to a request, or {"error": what is wrong with it}."""
        try:
            if not isinstance(body, dict):
                raise TransomError("expected a JSON object for api/NAME, found another request; open the page again")
            return self.server.explorer.answer(name, body)
        except TransomError as error:
            return self._spoken(error.line)

    def _path(self) -> str | None:
        """Return the path after the token; None after a refusal, where host, origin or token are not those of the page."""
        token, _, path = self.path.partition("?")[0].removeprefix("/").partition("/")
        host, origin, site = (self.headers.get(name) for name in ("Host", "Origin", "Sec-Fetch-Site"))
        known = host in self.server.hosts and origin in (None, *(f"http://{each}" for each in self.server.hosts))
        if known and site in (None, "none", "same-origin") and secrets.compare_digest(token.encode(), self.server.token.encode()):
            return path
        self.close_connection = True  # the body is not read
        text = phrase("errors.address", "expected the address that transom explore printed, found another; open that one")
        self._send_error(HTTPStatus.FORBIDDEN, text)
        return None

    def _body(self) -> bytes | None:
        """Return the body of the request; None after a refusal, where its length is missing or above ``MAX_BODY``."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            text = phrase("errors.body", "expected at most {most} MiB, found more; choose a smaller file", most=MAX_BODY // 2**20)
            self._send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
            return None
        return self.rfile.read(int(length))

    @contextmanager
    def _internal_errors(self) -> Iterator[None]:
        """Answer with status 500 where an exception leaves the block, which ``handle_error`` prints."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.close_connection = True
                text = phrase("errors.internal", "internal error; the terminal of transom explore shows it")
                self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    def _send_error(self, status: HTTPStatus, line: str) -> None:
        """Send one line that says what is wrong."""
        self._send_json(status, self._spoken(line))

    def _spoken(self, line: str) -> dict[str, Any]:
        """Return one line that says what is wrong in the language that the header Accept-Language names first, by default in English."""
        wanted = re.split("[-,;]", self.headers.get("Accept-Language", ""))[0].strip().lower()
        return {"error": in_language(line, wanted if wanted in LANGUAGES else ENGLISH)}

    def _send_json(self, status: HTTPStatus, value: Any) -> None:
        self._send(status, json.dumps(value, ensure_ascii=False, allow_nan=False).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, nonce: str = "") -> None:
        """Send a response with headers that keep the page from other hosts, and other pages from it."""
        scripts = f"'self' 'nonce-{nonce}'" if nonce else "'self'"
        policy = (
            f"default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # the name of the base class
        """Print nothing; the terminal shows internal errors only."""
