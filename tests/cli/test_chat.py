"""Conversations: the template of the run, the context, commands, and a terminal."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Call, sets
from transom.cli.main import main

SMALL = ("model.d_model=32", "model.d_ff=32", "model.n_heads=2", "model.n_layers=1", "tokenizer.vocab_size=300", "training.precision=fp32")
GREEDY = ("--temperature", "0", "--max-new-tokens", "8")


def conversation(turns: list[tuple[str, str]]) -> dict[str, Any]:
    """Write turns in OpenAI's format."""
    pairs = [({"role": "user", "content": user}, {"role": "assistant", "content": answer}) for user, answer in turns]
    return {"messages": [message for pair in pairs for message in pair]}


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on conversations with a template of their own."""
    folder = tmp_path_factory.mktemp("chat")
    turns = [("Hi", "Hello."), ("Who are you?", "A model."), ("Bye", "Goodbye.")]
    conversations = [conversation(turns), conversation(turns), conversation([(f"Say {i}", str(i)) for i in range(20)])]
    (folder / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in conversations))
    template = 'data.chat_template={ turn = "Q: {user}\\nA: {assistant}", separator = "\\n" }'
    steps = ("training.max_steps=3", "training.batch_tokens=512", "model.max_seq_len=64")
    command = ["train", "instructions", "--instructions", str(folder / "chats.jsonl"), "--out", str(folder / "run"), "--json"]
    assert main([*command, *sets(*SMALL, *steps, template)]) == 0
    return folder / "run"


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode())))


def answers(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_each_prompt_has_the_turns_before_in_the_run_s_template(transom: Call, assistant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "Hi", "Who are you?")
    outcome = transom("chat", assistant, *GREEDY, "--system", "Be brief.", "--json")
    first, second = answers(outcome.out)
    prompt = f"Be brief.\nQ: Hi\nA: {first['assistant']}\nWho are you?"
    generated = transom("generate", assistant, prompt, *GREEDY, "--json").json[0]["continuations"][0]
    assert second["assistant"] == generated["text"].strip()
    assert first["max_tokens"] == 64 and 0 < first["n_tokens"] < second["n_tokens"] <= 64


def test_the_oldest_turns_are_left_out_when_the_context_is_full(transom: Call, assistant: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, *[f"message number {i} of many" for i in range(8)])
    found = answers(transom("chat", assistant, *GREEDY, "--json").out)
    assert found[0]["n_dropped_turns"] == 0 < found[-1]["n_dropped_turns"]
    assert all(each["n_tokens"] <= 56 for each in found)


def test_commands(transom: Call, assistant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "saved.jsonl"
    second_path = tmp_path / "second.jsonl"
    say(monkeypatch, "Hi", f"/save {path}", "/reset", "/system Be kind.", "Hi", f"/save {second_path}", "/nonsense", "/exit", "Hi")
    outcome = transom("chat", assistant, *GREEDY)
    assert outcome.code == 0 and outcome.out.count("\n") == 2
    saved, second = (json.loads(each.read_text())["messages"] for each in (path, second_path))
    assert [message["role"] for message in saved] == ["user", "assistant"]
    assert [message["role"] for message in second] == ["system", "user", "assistant"] and second[0]["content"] == "Be kind."
    assert "error: expected a command, found /nonsense" in outcome.err and "[context: " in outcome.err


def test_a_language_model_stops_where_the_next_message_begins(transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / "text" / f"{i}.txt").write_text(f"User: Hi {'abcdefghijklmnopqrstuvwxyz'[i]}\nAssistant: Hello.\n\n" * 5)
    run = tmp_path / "run"
    assert (
        transom("train", "text-bpe", "--text", tmp_path / "text", "--out", run, "--json", *sets(*SMALL, "training.max_steps=3")).code == 0
    )
    say(monkeypatch, "Hi")
    (found,) = answers(transom("chat", run, *GREEDY, "--json").out)
    expected = transom("generate", run, "User: Hi\nAssistant:", "--stop", "\\nUser:", *GREEDY, "--json").json[0]["continuations"][0]["text"]
    assert found["assistant"] == expected.strip()


def test_a_conversation_in_a_terminal(assistant: Path) -> None:
    words = ["-m", "transom", "chat", str(assistant), *GREEDY]
    with pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=120, dimensions=(24, 100)) as terminal:
        terminal.expect("type a message; /reset forgets")
        terminal.expect("> ")
        terminal.sendline("Hi")
        terminal.expect(r"\[context: \d+ of 64 tokens\]")
        terminal.sendline("/help")
        terminal.expect("/exit or Ctrl-D ends")
        terminal.sendeof()
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0
