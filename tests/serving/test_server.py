"""What the server refuses: other hosts, origins, tokens and methods, files outside the page, bodies that are no requests, slow clients."""

import base64
import json
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.serving.runs import serve
from transom.serving import server as server_module
from transom.serving.server import MAX_BODY, PAGE, ExploreServer

TEXT = {"text": "the cat "}


class Reply:
    """Status, headers and body of a response."""

    def __init__(self, server: ExploreServer, method: str, path: str, body: str | bytes = "", headers: Mapping[str, str] = {}) -> None:
        """Send a request and read the response; ``{token}`` in the path is the server's."""
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        host = {} if "Host" in headers else {"Host": f"127.0.0.1:{server.server_port}"}
        connection.putrequest(method, path.replace("{token}", server.token), skip_host=True, skip_accept_encoding=True)
        content = body.encode() if isinstance(body, str) else body
        for name, value in {"Content-Length": str(len(content)), **host, **headers}.items():
            connection.putheader(name, value.replace("{port}", str(server.server_port)))
        connection.endheaders(content)
        response = connection.getresponse()
        self.status, self.headers, self.content = response.status, response.headers, response.read()
        connection.close()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)


def post(server: ExploreServer, name: str, body: Any, headers: Mapping[str, str] = {}) -> Reply:
    """Ask the server."""
    return Reply(server, "POST", f"/{{token}}/api/{name}", body if isinstance(body, str | bytes) else json.dumps(body), headers)


def logits(**fields: Any) -> dict[str, Any]:
    return {"input": TEXT, "position": 0} | fields


FOREIGN: dict[str, Mapping[str, str]] = {
    "another host": {"Host": "evil.example"},
    "a host that resolves to this machine": {"Host": "rebound.example:{port}"},
    "another port": {"Host": "127.0.0.1:1"},
    "no host": {"Host": ""},
    "the host with a suffix": {"Host": "127.0.0.1:{port}.evil.example"},
    "another origin": {"Origin": "http://evil.example"},
    "an opaque origin": {"Origin": "null"},
    "another scheme": {"Origin": "https://127.0.0.1:{port}"},
    "another port's origin": {"Origin": "http://127.0.0.1:1"},
    "another site": {"Sec-Fetch-Site": "cross-site"},
    "the same site": {"Sec-Fetch-Site": "same-site"},
}


@pytest.mark.parametrize("why", FOREIGN)
@pytest.mark.parametrize(("method", "path"), [("GET", "/{token}/"), ("GET", "/{token}/messages/en.json"), ("POST", "/{token}/api/models")])
def test_requests_of_others_are_refused(server: ExploreServer, method: str, path: str, why: str) -> None:
    reply = Reply(server, method, path, "{}" if method == "POST" else "", FOREIGN[why])
    assert (reply.status, list(reply.json)) == (403, ["error"])
    assert server.token not in str(reply.headers) + reply.content.decode(), "the refusal does not tell the address"


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://localhost:{port}", "Sec-Fetch-Site": "same-origin"}, {"Host": "localhost:{port}"}]
)
def test_the_page_s_own_requests_are_answered(server: ExploreServer, headers: Mapping[str, str]) -> None:
    assert post(server, "models", {}, headers).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/index.html",
        "/api/models",
        "//",
        "/{token}0/",
        "/0{token}/",
        "/" + 32 * "0" + "/",
        "/%7Btoken%7D/",
        "/../{token}/",
        "/%C3%A4/",
    ],
)
def test_another_token_is_refused(server: ExploreServer, path: str) -> None:
    for method in ("GET", "POST"):
        assert Reply(server, method, path, "{}").status == 403


def test_every_server_has_its_own_token(server: ExploreServer) -> None:
    with ExploreServer(server.explorer) as other:
        assert other.token != server.token
        assert len(other.token) == 32 and set(other.token) <= set("0123456789abcdef")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "TRACE", "CONNECT"])
def test_other_methods_are_refused(server: ExploreServer, method: str) -> None:
    assert Reply(server, method, "/{token}/").status == 501


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../server.py",
            "..%2fserver.py",
            "%2e%2e/server.py",
            "./app.js",
            "/etc/passwd",
            "//etc/passwd",
            "..\\server.py",
            "page/../app.js",
        ),
        *(
            "messages/../en.json",
            "messages/en.json/..",
            "messages/..%2fen.json",
            "messages/fr.json",
            "messages/",
            "__pycache__",
            "app.js/",
            ".",
        ),
        *("app.js%00.css", "file:///etc/passwd", "api/models", "INDEX.HTML", "con", "index.html.bak"),
    ],
)
def test_only_files_of_the_page_are_sent(server: ExploreServer, name: str) -> None:
    reply = Reply(server, "GET", f"/{{token}}/{name}")
    assert (reply.status, reply.headers["Content-Type"]) == (404, "application/json; charset=utf-8")
    assert "expected a file of the page" in reply.json["error"]


def test_files_are_sent_with_headers_that_shut_out_others(server: ExploreServer) -> None:
    types = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for file in PAGE.iterdir():
        reply = Reply(server, "GET", f"/{{token}}/{file.name}?v=1")
        assert (reply.status, reply.content) == (200, file.read_bytes())
        assert reply.headers["Content-Type"] == f"{types[file.name.rpartition('.')[2]]}; charset=utf-8"
        policy = dict(part.strip().partition(" ")[::2] for part in reply.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == "'self'" and "unsafe" not in str(policy)
        assert reply.headers["X-Content-Type-Options"] == "nosniff" and reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in reply.headers and reply.headers["Referrer-Policy"] == "no-referrer"


def test_the_nonce_of_the_page_changes(server: ExploreServer) -> None:
    nonces = set()
    for _ in range(3):
        reply = Reply(server, "GET", "/{token}/")
        nonce = reply.headers["Content-Security-Policy"].partition("'nonce-")[2].partition("'")[0]
        assert len(nonce) >= 16 and f'nonce="{nonce}"' in reply.content.decode() and "{nonce}" not in reply.content.decode()
        nonces.add(nonce)
    assert len(nonces) == 3


DEEP = 100_000
NO_REQUEST: dict[str, tuple[str, str | bytes, str]] = {
    "no JSON": ("logits", "{", "expected JSON"),
    "an empty body": ("logits", "", "expected JSON"),
    "no UTF-8": ("logits", b'{"input": "\xff"}', "expected"),
    "a text": ("models", '"{}"', "expected a JSON object"),
    "a number": ("models", "3", "expected a JSON object"),
    "deep nesting": ("models", "[" * DEEP + "]" * DEEP, "expected"),
    "a deep object": ("logits", '{"input":' * DEEP + "1" + "}" * DEEP, "expected"),
    "not a number": ("logits", json.dumps(logits(position=float("nan"))), "expected"),
    "infinity": ("calculation", '{"input": {"text": "a"}, "name": "probs", "temperature": Infinity}', "expected"),
    "a huge number": ("logits", '{"input": {"text": "a"}, "position": 1e999}', "expected"),
    "an unknown kind": ("__init__", "{}", "expected a request of the kind models, vocabulary"),
    "a private method": ("_store", '{"data": ""}', "expected a request of the kind"),
    "a path": ("../models", "{}", "expected a request of the kind"),
    "an unknown field": ("models", '{"x": 1}', "x"),
    "no input": ("pass", "{}", "input"),
    "a text as input": ("pass", '{"input": "the cat"}', "input"),
    "no text": ("pass", '{"input": {}}', "expected text or file, found neither"),
    "text and file": ("pass", json.dumps({"input": {"text": "a", "file": 32 * "0"}}), "expected text or file, found both"),
    "an empty text": ("pass", '{"input": {"text": ""}}', "expected"),
    "a long text": ("pass", json.dumps({"input": {"text": "a" * 1_000_001}}), "text"),
    "a text beyond the context window": ("pass", json.dumps({"input": {"text": "a" * 3000}}), "2,04"),
    "a lone surrogate": ("pass", '{"input": {"text": "\\ud800"}}', "expected"),
    "a null character": ("pass", '{"input": {"text": "a\\u0000b"}}', "expected"),
    "a path as file": ("pass", '{"input": {"file": "../../etc/passwd"}}', "file"),
    "a file that is not there": ("pass", json.dumps({"input": {"file": 32 * "0"}}), "expected a text"),
    "another model": ("logits", json.dumps(logits(model=1)), "model: expected a number from 0 to 0, found 1"),
    "a negative model": ("logits", json.dumps(logits(model=-1)), "model"),
    "a position as text": ("logits", json.dumps(logits(position="0")), "position"),
    "a fraction": ("logits", json.dumps(logits(position=0.5)), "position"),
    "a truth value": ("logits", json.dumps(logits(position=True)), "position"),
    "a position outside": ("logits", json.dumps(logits(position=99)), "position: expected a number from 0 to 8, found 99"),
    "a name outside": ("tensor", json.dumps({"input": TEXT, "name": "__class__"}), "name: expected the address of a quantity"),
    "an axis outside": ("tensor", json.dumps({"input": TEXT, "name": "logits", "index": {"key": 0}}), "index: expected axes of logits"),
    "an index outside": (
        "tensor",
        json.dumps({"input": TEXT, "name": "logits", "index": {"query": 9}}),
        "index: expected query from 0 to 8",
    ),
    "an incomplete index": (
        "calculation",
        json.dumps({"input": TEXT, "name": "logits"}),
        "index: expected one index for each of query, vocab",
    ),
    "a module as layer": (
        "head",
        json.dumps(logits(attention="decoder", head=0, query=0)),
        "attention: expected the address of an attention",
    ),
    "a head outside": (
        "head",
        json.dumps(logits(attention="decoder.blocks.0.attn", head=4, query=0)),
        "head: expected a number from 0 to 3",
    ),
    "a query outside": ("head", json.dumps(logits(attention="decoder.blocks.0.attn", head=0, query=9)), "query"),
    "a symbol outside": ("head", json.dumps(logits(attention="decoder.blocks.0.attn", head=0, query=0, symbol=99)), "symbol"),
    "no base64": ("upload", '{"name": "a", "data": "ä"}', "expected a file in base64"),
    "an empty file": ("upload", '{"name": "a", "data": ""}', "expected a file with content"),
    "an export of an export": ("export", '{"requests": [["export", {}]], "state": {}}', "expected questions about models, found export"),
    "an export of an error": ("export", '{"requests": [["logits", {}]], "state": {}}', "input"),
    "a patch from a file": (
        "pass",
        json.dumps({"input": TEXT, "edits": [{"kind": "patch", "name": "decoder.blocks.0.resid_post", "file": "/etc/passwd"}]}),
        "expected patches from a text, found one from a file or run",
    ),
    "a patch from a run": (
        "pass",
        json.dumps({"input": TEXT, "edits": [{"kind": "patch", "name": "decoder.blocks.0.resid_post", "text": "a", "run": "/tmp"}]}),
        "expected patches from a text, found one from a file or run",
    ),
    "an edit of another kind": ("pass", json.dumps({"input": TEXT, "edits": [{"kind": "exec", "name": "x"}]}), "kind"),
    "too many edits": ("pass", json.dumps({"input": TEXT, "edits": [{"kind": "ablate-heads", "heads": [0]}] * 1001}), "edits"),
}


@pytest.mark.parametrize("what", NO_REQUEST)
def test_bodies_that_are_no_requests_get_one_line(server: ExploreServer, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, body, error = NO_REQUEST[what]
    reply = post(server, name, body)
    assert (reply.status, list(reply.json)) == (400, ["error"])
    assert error in reply.json["error"] and "\n" not in reply.json["error"] and "Traceback" not in reply.json["error"]
    assert post(server, "models", {}).status == 200, "the server goes on"
    assert capsys.readouterr().err == ""


def test_an_array_of_requests_is_answered_by_an_array(server: ExploreServer) -> None:
    bodies = [logits(position=i) for i in range(3)]
    reply = post(server, "logits", bodies)
    assert (reply.status, reply.json) == (200, [post(server, "logits", body).json for body in bodies])
    assert (post(server, "logits", []).status, post(server, "logits", []).json) == (200, [])
    reply = post(server, "logits", [bodies[0], logits(position=99), 3, [bodies[1]], bodies[1]])
    assert reply.status == 400 and [list(each) == ["error"] for each in reply.json] == [False, True, True, True, False]
    assert reply.json[1] == post(server, "logits", logits(position=99)).json and "expected a JSON object" in reply.json[3]["error"]


@pytest.mark.parametrize("length", [str(MAX_BODY + 1), "1" + 40 * "0", "-1", "1e3", "", "٣"])
def test_a_body_of_another_length_is_not_read(server: ExploreServer, length: str) -> None:
    headers = {"Content-Length": length.encode().decode("latin-1")} if length else {"Transfer-Encoding": "chunked", "Content-Length": ""}
    reply = Reply(server, "POST", "/{token}/api/models", "{}", headers)
    assert reply.status == 413 and "expected at most 64 MiB" in reply.json["error"]
    assert reply.headers.get("Connection", "close") == "close"


def test_a_slow_client_is_let_go(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither one that sends no request nor one that sends no body occupies the server, and others are answered meanwhile."""
    monkeypatch.setattr(server_module._Handler, "timeout", 0.3)
    with serve(runs["language"]) as server:
        slow = [socket.create_connection(("127.0.0.1", server.server_port), timeout=20) for _ in range(3)]
        slow[1].sendall(b"POST /")
        head = f"POST /{server.token}/api/models HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Length: 9\r\n\r\n{{"
        slow[2].sendall(head.encode())
        assert post(server, "models", {}).status == 200
        for each in slow:
            with each:
                assert b"200 OK" not in each.recv(4096), "the connection ends"
    assert capsys.readouterr().err == ""


def test_requests_at_once_are_answered_each_by_its_own(server: ExploreServer, runs: dict[str, Path]) -> None:
    """Passes with and without edits, of several texts, by eight clients at once."""
    run: Any = transom.load(runs["language"], "fp32")
    texts = ["the cat ", "the dog sees", "and the", "dog dog"]
    off = {"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [1], "heads": [0, 3]}
    expected = {}
    for text in texts:
        for edits in ([], [off]):
            with transom.edits(run, edits) if edits else nullcontext():
                expected[text, len(edits)] = transom.trace(run, text, ["logits"])[0][0, -1]
    asked = [(text, edits) for _ in range(4) for text in texts for edits in ([], [off])]

    def ask(question: tuple[str, list[Any]]) -> torch.Tensor:
        text, edits = question
        body = logits(input={"text": text}, edits=edits, position=len(text))
        calculation = {"input": {"text": text}, "edits": edits, "name": "logits", "index": {"query": len(text), "vocab": 3}}
        data = base64.b64decode(post(server, "logits", body).json["data"])
        value = torch.frombuffer(bytearray(data), dtype=torch.float32)
        assert post(server, "calculation", calculation).json["value"] == pytest.approx(value[3].item(), abs=1e-6)
        return value

    with ThreadPoolExecutor(8) as threads:
        for (text, edits), found in zip(asked, threads.map(ask, asked), strict=True):
            assert torch.equal(found, expected[text, len(edits)])


EDITS = [{"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [0], "heads": [1]}]
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("pass", {}),
    ("tensor", {"name": "logits"}),
    ("calculation", {"name": "probs", "index": {"query": 1, "vocab": 2}}),
    ("calculation", {"name": "probs", "index": {"query": 1, "vocab": 99}}),
    ("lens", {"position": 1}),
    ("sweep", {"position": 1}),
    ("head", {"position": 1, "attention": "decoder.blocks.1.attn", "head": 0, "query": 1}),
    ("head", {"position": 1, "attention": "decoder.blocks.1.attn", "head": 0, "query": 99}),
]


def test_no_request_leaves_edits_in_force(server: ExploreServer) -> None:
    """Also one that fails; the network's own state and the logits are those of before."""
    network = server.explorer.models[0].network
    before = {name: x.clone() for name, x in network.state_dict().items()}
    plain = post(server, "logits", logits(position=3)).json
    for name, fields in QUESTIONS:
        post(server, name, {"input": TEXT, "edits": EDITS, **fields})
        assert not network.edits
        assert post(server, "logits", logits(position=3)).json == plain
    fresh = transom.trace(server.explorer.models[0].run, TEXT["text"], ["logits"])[0][0, 3]
    assert base64.b64decode(plain["data"]) == fresh.numpy().tobytes()
    assert all(torch.equal(x, before[name]) for name, x in network.state_dict().items())


def test_only_the_loopback_interface_is_bound(server: ExploreServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None)} - {"127.0.0.1", "::1"}
    for address in [*others, "127.0.0.2"]:
        with pytest.raises(OSError):
            socket.create_connection((str(address), server.server_port), timeout=5)


def test_uploads_end_with_the_server(runs: dict[str, Path]) -> None:
    with serve(runs["language"]) as server:
        folder = server.explorer._uploads
        names = ["../../evil.png", "/etc/passwd", "a\x00b", "<img src=x>", "con.png"]
        for number, name in enumerate(names):
            reply = post(server, "upload", {"name": name, "data": base64.b64encode(bytes([number, 1])).decode()})
            assert reply.status == 200 and (folder / reply.json["file"]).read_bytes() == bytes([number, 1])
        assert len(list(folder.iterdir())) == len(names), "the name of a file is not a path"
    assert not folder.exists()
