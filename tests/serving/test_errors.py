"""Every error that a person can cause on the page is said in the language of the page."""

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.runs import INPUTS, Runs, serve
from tests.serving.test_server import Reply, post
from tests.tiers import every
from transom.inspection.messages.tables import ENGLISH, LANGUAGES, templates
from transom.serving.server import MAX_BODY, ExploreServer

TEXT = {"text": INPUTS["translator"]}
LONG = {"text": "a b c d e f " * 400}
PATCH = {"kind": "patch", "name": "encoder.blocks.0.resid_post", "text": "a b"}
HEAD = {"kind": "ablate-heads", "stack": "encoder", "blocks": [0], "heads": [0]}
LAYER = "encoder.blocks.0.attn"
MAP = {"attention": LAYER, "head": 0}

OF_TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "an empty text": ("pass", {"input": {"text": ""}}),
    "a text longer than the context window": ("pass", {"input": LONG}),
    "a text of more characters than are read": ("pass", {"input": {"text": "a" * 1_000_001}}),
    "a translation longer than the context window": ("pass", {"input": TEXT | {"target": LONG["text"]}}),
    "a text with a NUL character": ("pass", {"input": {"text": "a\0b"}}),
    "a text with half a surrogate pair": ("pass", {"input": {"text": "a\ud800b"}}),
    "a saved link to a picture, at a model of texts": ("pass", {"input": {"file": "0" * 32}}),
    "a second text that is empty": ("tokens", {"input": {"text": ""}}),
    "a second text longer than the context window": ("pass", {"input": TEXT, "edits": [PATCH | {"text": LONG["text"]}]}),
    "a patch from a position that the second text lacks": ("pass", {"input": TEXT, "edits": [PATCH | {"positions": [5]}]}),
    "a patch from another position that it lacks": (
        "pass",
        {"input": TEXT, "edits": [PATCH | {"positions": [1], "from_positions": [9]}]},
    ),
    "a patch at a position that the text lacks": ("pass", {"input": {"text": "a"}, "edits": [PATCH | {"positions": [2]}]}),
    "a patch that a shorter text leaves without a place": (
        "pass",
        {"input": {"text": "a"}, "edits": [PATCH | {"text": TEXT["text"], "positions": [5]}]},
    ),
    "a head that a second model lacks": ("pass", {"input": TEXT, "edits": [HEAD | {"heads": [9]}]}),
    "a block that a second model lacks": ("pass", {"input": TEXT, "edits": [HEAD | {"blocks": [9]}]}),
    "a stack that a second model lacks": ("pass", {"input": {"text": "the cat"}, "edits": [HEAD | {"stack": "encoder"}]}),
    "a stream that a second model lacks": ("pass", {"input": TEXT, "edits": [PATCH | {"name": "encoder.blocks.9.resid_post"}]}),
    "a quantity that a second model lacks": ("tensor", {"input": TEXT, "name": "encoder.blocks.9.resid_post"}),
    "a layer that a second model lacks": ("head", {"input": TEXT, "attention": "x", "head": 0, "query": 0, "position": 0}),
    "a map of a layer that a second model lacks": ("tile", {"input": TEXT, "attention": "x", "head": 0, "level": 0, "row": 0, "column": 0}),
    "a number of a head in a link": ("head", {"input": TEXT, "attention": LAYER, "head": 9, "query": 0, "position": 0}),
    "a position of a query in a link": ("tensor", {"input": TEXT, "name": f"{LAYER}.weights", "index": {"query": 99}}),
    "a cell in a link": ("calculation", {"input": TEXT, "name": f"{LAYER}.weights", "index": {"n_heads": 9, "query": 0, "key": 0}}),
    "a position of an answer in a link": ("logits", {"input": TEXT, "position": 99}),
    "a symbol in a link": ("head", {"input": TEXT, **MAP, "query": 0, "position": 0, "symbol": 10**6}),
    "a tile in a link": ("tile", {"input": TEXT, **MAP, "level": 0, "row": 9, "column": 9}),
    "a second model in a link": ("pass", {"input": TEXT, "model": 1}),
    "an empty file": ("upload", {"name": "a.png", "data": ""}),
}
"""Requests that a person can cause at a translator (of a stack that it lacks: at a language model), by what the person did."""


def wav(kind: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16, n: int = 99, declared: int | None = None) -> bytes:
    """Return a file of silence in the format WAV."""
    header = struct.pack("<HHIIHH", kind, channels, rate, 0, 0, bits)
    samples = bytes(n * channels * bits // 8)
    size = len(samples) if declared is None else declared
    return b"RIFF\0\0\0\0WAVE" + b"fmt " + struct.pack("<I", 16) + header + b"data" + struct.pack("<I", size) + samples


FILES = {
    "pictures": {"a text file": b"hello", "a damaged picture": b"\x89PNG\r\n\x1a\n" + bytes(30)},
    "sounds": {
        "a text file": b"hello",
        "a file cut in its header": b"RIFF\0\0\0\0WAVEfmt ",
        "an unknown format": wav(kind=9),
        "too many channels": wav(channels=6),
        "a sampling rate that is too low": wav(rate=10),
        "a file that is cut off": wav(declared=999_999),
        "a file without samples": wav(n=0),
        "samples that are no numbers": wav(kind=3, bits=32)[:-4] + struct.pack("<f", float("nan")),
    },
}
"""Files that cannot be read, by kind of model."""

NOTATION = r"'[^']*'|\([^)]*\)|[\w./-]+\.(png|wav)\b|\b(transom|names|RUN)\b|(\b\w+\.)+\w+"


def words(text: str) -> set[str]:
    """Return the words of a text but names, numbers and what it quotes."""
    return set(re.findall(r"[^\W\d_]{3,}", re.sub(NOTATION, "", text)))


def known(language: str) -> set[str]:
    """Return the words of the messages of errors in a language."""
    return {word for text in templates(language, "errors").values() for word in re.findall(r"[^\W\d_]{3,}", str(text))}


FIELDS = {"text", "target", "input", "name", "position", "positions", "from", "head", "heads", "blocks", "index", "stack", "tile", "upload"}
FIELDS |= {"model", "symbol", "attention", "edits", "patch", "ablate", "query", "key", "encoder", "decoder", "nearest", "resid", "post"}


def check(server: ExploreServer, name: str, body: dict[str, Any]) -> None:
    """Ask in both languages: the German line is another one, all of whose words are German, fields or numbers."""
    english, german = (post(server, name, body, {"Accept-Language": language}) for language in LANGUAGES)
    assert (english.status, german.status) == (400, 400), english.json
    lines = [reply.json["error"] for reply in (english, german)]
    assert "\n" not in lines[1] and "erwartet" in lines[1], lines
    assert words(lines[1]) - known("de") - FIELDS == set(), lines
    assert words(lines[0]) - known(ENGLISH) - FIELDS == set(), lines
    assert "/tmp" not in lines[0] and re.findall(r"\d+", lines[0]) == re.findall(r"\d+", lines[1]), lines


@pytest.fixture(scope="module")
def translator(runs: dict[str, Path]) -> Iterator[ExploreServer]:
    """Serve the translator."""
    with serve(runs["translator"]) as found:
        yield found


@pytest.mark.parametrize("why", every(7, OF_TEXTS))
def test_errors_of_texts_edits_and_links(translator: ExploreServer, server: ExploreServer, why: str) -> None:
    check(server if why.startswith("a stack") else translator, *OF_TEXTS[why])


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_errors_of_files(runs: Runs, kind: str) -> None:
    with serve(runs[kind]) as server:
        for why, content in FILES[kind].items():
            name = f"{why.replace(' ', '-')}.{'png' if kind == 'pictures' else 'wav'}"
            file = post(server, "upload", {"name": name, "data": base64.b64encode(content).decode()}).json["file"]
            check(server, "pass", {"input": {"file": file}})
            line = post(server, "pass", {"input": {"file": file}}, {"Accept-Language": "de"}).json["error"]
            assert line.startswith(f"{name}: "), "the file is named as the person named it"
        for body in ({"input": {"file": "0" * 32}}, {"input": {"text": "hello"}}):
            check(server, "pass", body)


@pytest.mark.long
def test_a_long_text_has_maps_only(translator: ExploreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.serving.passes.MAX_BYTES", 2**20)
    monkeypatch.setattr("transom.serving.passes.estimate_bytes", lambda model, given: (2**21, 6))
    monkeypatch.setattr("transom.serving.explorer.estimate_bytes", lambda model, given: (2**21, 6))
    body = {"input": {"text": "f e d"}, "name": "logits"}
    check(translator, "tensor", body)


def test_refusals_without_an_answer_are_told_too(translator: ExploreServer) -> None:
    language = {"Accept-Language": "de"}
    large = Reply(translator, "POST", "/{token}/api/upload", "", {**language, "Content-Length": str(MAX_BODY + 1)})
    assert (large.status, large.json["error"]) == (413, "erwartet werden höchstens 64 MiB, gefunden: mehr; eine kleinere Datei wählen")
    other = Reply(translator, "POST", "/0123/api/models", "{}", language)
    assert other.status == 403 and "gefunden: eine andere" in other.json["error"]


@pytest.mark.parametrize(("header", "word"), [("de-DE,de;q=0.9", "erwartet"), ("fr", "expected"), ("", "expected"), ("en", "expected")])
def test_the_language_is_that_of_the_header(translator: ExploreServer, header: str, word: str) -> None:
    assert word in post(translator, "pass", {"input": {"text": ""}}, {"Accept-Language": header}).json["error"]


def test_several_questions_are_answered_in_one_language(translator: ExploreServer) -> None:
    first, second = post(translator, "logits", json.dumps([{"input": TEXT, "position": 99}] * 2), {"Accept-Language": "de"}).json
    assert first == second == {"error": first["error"]} and "erwartet" in first["error"]
