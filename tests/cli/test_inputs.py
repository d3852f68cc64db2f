"""Arguments, files and standard input of every predicting command; warnings of inputs unlike the training data."""

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Call, Trained, sets
from tests.tiers import every, tiers

SMALL = ("model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1", "training.max_steps=2", "training.batch_tokens=512")
TEXT = "the cat sat on the mat and the dog sat on the log\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> dict[str, Path]:
    """Train a tiny run per predicting command."""
    from transom.cli.main import main

    folder = tmp_path_factory.mktemp("runs")
    (folder / "text").mkdir()
    for i in range(20):
        (folder / "text" / f"{i}.txt").write_text(TEXT * 3 + f"line {'abcdefghijklmnopqrstuvwxyz'[i]}\n")
    (folder / "labels.tsv").write_text("".join(f"the cat {'sat' if i % 2 else 'ran'} {i}\t{'yes' if i % 2 else 'no'}\n" for i in range(60)))
    commands = {
        "generate": ["text-bpe", "--text", folder / "text", *sets("tokenizer.vocab_size=300", "model.max_seq_len=32")],
        "fill": ["text-masked", "--text", folder / "text", *sets("tokenizer.vocab_size=300", "model.max_seq_len=32")],
        "classify": ["text-classes", "--labeled-data", folder / "labels.tsv", *sets("tokenizer.kind=char")],
        "tag": ["phrasebook-tags", *sets("data.generate.n_train=300", "data.generate.n_valid=20")],
    }
    for name, command in commands.items():
        assert main(["train", *map(str, command), "--out", str(folder / name), "--json", *sets(*SMALL, "training.precision=fp32")]) == 0
    others = {"embed": folder / "classify", "score": folder / "generate", "translate": trained.folder}
    return {name: folder / name for name in commands} | others


LINES = {
    "translate": ["ab ba", "aa"],
    "generate": ["the cat", "the dog"],
    "fill": ["the [MASK] sat", "on the [MASK]"],
    "classify": ["the cat sat 1", "the cat ran 2"],
    "tag": ["Ana goes", "Luis goes"],
    "embed": ["the cat sat", "the cat ran"],
    "score": ["the cat sat", "the dog sat"],
}
OPTIONS = {"generate": ["--max-new-tokens", "3", "--temperature", "0"], "translate": ["--max-length", "5"]}


def records(out: str) -> list[dict[str, Any]]:
    """Read a JSON list, or one object per line."""
    return json.loads(out) if out.startswith("[") else [json.loads(line) for line in out.splitlines()]  # type: ignore[no-any-return]


@pytest.mark.parametrize("command", LINES)
def test_every_source_gives_the_same_answers(
    transom: Call, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    call: Callable[..., Any] = lambda *more: transom(command, runs[command], *OPTIONS.get(command, []), *more, "--json")  # noqa: E731
    lines = LINES[command]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    given = records(call(*lines).out)
    assert len(given) == 2 and all("warnings" in record for record in given)
    assert records(call("--input", tmp_path / "lines.txt").out) == given
    for more in ((), ("--line-buffered",)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in lines).encode())))
        outcome = call(*more)
        answers = records(outcome.out)
        compared = {"nearest"} if command == "embed" and more else set()  # line by line, a text is compared with those before it
        assert [set(record) for record in answers] == [set(record) | compared for record in given]
        assert outcome.out.count("\n") == (2 if more or command == "embed" else 1)
    both = transom(command, runs[command], lines[0], "--input", tmp_path / "lines.txt").error
    assert "found both; remove one" in both


def test_each_line_is_answered_before_the_next_is_written(runs: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "transom", "classify", str(runs["classify"]), "--line-buffered"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None and process.stdout is not None
        for text in ("the cat sat 1", "the cat ran 2", "the cat sat 3"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert process.stdout.readline().split("\t")[0] in ("yes", "no")
        process.stdin.close()
    assert process.returncode == 0


def spawn(*arguments: str | Path, columns: int = 100, **environment: str) -> Any:
    """Start a command in a pseudo-terminal."""
    words = ["-m", "transom", *map(str, arguments)]
    size = (24, columns)
    return pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=120, dimensions=size, env={**os.environ, **environment})


@pytest.mark.parametrize("command", every(4, ["translate", "classify", "generate", "embed"]))
def test_a_terminal_answers_each_line_and_keeps_a_history(runs: dict[str, Path], command: str) -> None:
    with spawn(command, runs[command], *OPTIONS.get(command, [])) as terminal:
        terminal.expect("one per line; /help explains, /exit or Ctrl-D ends")
        terminal.expect("> ")
        terminal.sendline(LINES[command][0])
        terminal.expect("> ")
        terminal.send("\x1b[A")  # the line before, from the history
        terminal.expect(LINES[command][0].split()[0])
        terminal.sendline("")
        terminal.expect("> ")
        terminal.sendline("/help")
        terminal.expect("the arrow keys edit a line and recall earlier ones")
        terminal.expect("> ")
        terminal.sendline("/exit")
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0


def test_a_mistake_at_the_prompt_ends_nothing(runs: dict[str, Path]) -> None:
    with spawn("fill", runs["fill"]) as terminal:
        terminal.expect("> ")
        terminal.sendline("no mask here")
        terminal.expect(r"error: expected \[MASK\] in the text")
        terminal.expect("> ")
        terminal.sendline("the [MASK] sat")
        terminal.expect("[0-9]%|0[.][0-9]")
        terminal.expect("> ")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 130


def test_control_characters_are_shown_in_a_terminal(runs: dict[str, Path]) -> None:
    with spawn("generate", runs["generate"], "a\x1b[2Jb", "--max-new-tokens", "1", "--temperature", "0") as terminal:
        terminal.expect(pexpect.EOF)
    assert "a␛[2Jb" in terminal.before and "\x1b[2J" not in terminal.before


def test_inputs_unlike_the_training_data_get_warnings(transom: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    one = transom("classify", runs["classify"], "the quick cat sat")
    assert one.err.strip() == "warning: 1 of 4 words never seen in training: quick" and one.code == 0
    (record,) = transom("classify", runs["classify"], "the quick cat sat", "--json").json
    assert record["warnings"] == ["1 of 4 words never seen in training: quick"]
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat sat\nso long\n" * 5)
    many = transom("classify", runs["classify"], "--input", lines)
    assert "warning: line 2: 2 of 2 words never seen in training: so, long" in many.err
    assert "warning: 2 more of 10 texts have warnings; --json prints all warnings" in many.err
    long = transom("classify", runs["classify"], "the cat sat " * 20).err
    assert "characters long, but the longest training text has 14" in long
    german = "die Katze schläft heute lange auf dem warmen Dach des alten Hauses"
    assert "perhaps another language" in transom("fill", runs["fill"], f"{german} [MASK]").err
    assert "never seen" not in transom("generate", runs["generate"], "the cat sat", "--max-new-tokens", "1").err


def test_a_run_without_a_profile_predicts_without_warnings(transom: Call, runs: dict[str, Path]) -> None:
    profile = runs["classify"] / "input_profile.json"
    content = profile.read_bytes()
    try:
        profile.write_text('{"format_version": 3}')
        assert "input_profile.json: damaged: a field is missing" in transom("classify", runs["classify"], "a quick cat").error
        profile.unlink()
        assert transom("classify", runs["classify"], "a quick cat").err == ""
    finally:
        profile.write_bytes(content)


def test_n_best_raises_the_beam_and_alignments_are_drawn(transom: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    run, page = runs["translate"], tmp_path / "page.html"
    (record,) = transom("translate", run, "ab ba", "--n-best", "4", "--json").json
    assert len(record["translations"]) == 4
    (aligned,) = transom("translate", run, "ab ba", "--alignment", "--html", page, "--min-length", "2", "--json").json
    assert len(aligned["alignment"]["weights"]) == len(aligned["alignment"]["target"])
    assert "<svg" in page.read_text() and "ab ba" in page.read_text()
    assert aligned["alignment"]["origin"] in page.read_text()
    assert "expected --html only with --alignment" in transom("translate", run, "ab", "--html", page).error


def test_nearest_texts_are_those_of_numpy(transom: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat sat\nthe dog ran\non the mat\n")
    (record,) = records(transom("embed", runs["embed"], "a cat sat", "--nearest", lines, "--top-k", "2", "--json").out)
    vectors = [r["embedding"] for r in records(transom("embed", runs["embed"], "--input", lines, "--json").out)]
    cosines = [sum(a * b for a, b in zip(record["embedding"], vector, strict=True)) for vector in vectors]
    best = sorted(range(3), key=lambda i: -cosines[i])[:2]
    assert [found["line"] for found in record["nearest"]] == [i + 1 for i in best]
    assert [found["similarity"] for found in record["nearest"]] == pytest.approx([cosines[i] for i in best], abs=1e-5)
    text = transom("embed", runs["embed"], "a cat sat", "--nearest", lines, "--top-k", "1").out
    assert text.strip().endswith(lines.read_text().splitlines()[best[0]])


ENVIRONMENTS: list[dict[str, str]] = [{}, {"NO_COLOR": "1"}, {"LC_ALL": "C"}, {"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}]
TYPED = ["", "   ", "ä é ß 漢字", "word " * 300, "tab\there", "[MASK]", "'\"\\", "-5", "--help", "the cat"]
"""Lines that people type by mistake or to see what happens."""


def end(terminal: Any, press: Callable[[], object]) -> None:
    """Press a key until the command ends; a key that comes before the prompt reads keys is lost."""
    for _ in range(5):
        press()
        if terminal.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=10) == 0:
            return
    raise AssertionError("five times pressed, and still running")


@pytest.mark.parametrize("seed", tiers(range(100), long=range(0, 100, 25)))
def test_a_drawn_session_in_a_terminal_ends_as_the_person_ends_it(runs: dict[str, Path], seed: int) -> None:
    draw = random.Random(seed)
    command, environment = draw.choice([*LINES]), draw.choice(ENVIRONMENTS)
    with spawn(command, runs[command], *OPTIONS.get(command, []), columns=draw.randint(40, 200), **environment) as terminal:
        terminal.expect("Ctrl-D ends")
        terminal.expect("> ")
        for _ in range(draw.randint(1, 3)):
            match draw.choice(["line", "typed", "again", "resize"]):
                case "line":
                    terminal.sendline(draw.choice(LINES[command]))
                case "typed":
                    terminal.sendline(draw.choice(TYPED))
                case "again":
                    terminal.sendline("\x1b[A")
                case "resize":
                    terminal.setwinsize(draw.randint(5, 50), draw.randint(40, 200))
                    terminal.sendline(LINES[command][0])
            terminal.expect("> ")
        shown = terminal.before
        match draw.choice(["Ctrl-D", "Ctrl-C", "hangup"]):
            case "Ctrl-D":
                end(terminal, terminal.sendeof)
                expected = 0
            case "Ctrl-C":
                end(terminal, terminal.sendintr)
                expected = 130
            case _:
                terminal.close(force=False)
                expected = None
        shown += terminal.before if isinstance(terminal.before, str) else ""
    assert terminal.exitstatus == expected and "Traceback" not in shown, f"{command} {environment}: {terminal.exitstatus}\n{shown}"
