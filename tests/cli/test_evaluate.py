"""Instruction-tuned runs are evaluated by their answers to a test set, and runs that cannot be evaluated are sent to their own command."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from tests.cli.conftest import Call, Trained
from tests.cli.test_chat import assistant
from tests.cli.test_instructions import asked, instruction_tuned
from tests.cli.test_language import LanguageRun, spoken

__all__ = ["asked", "assistant", "instruction_tuned", "spoken"]

PROMPTS = [f"What is {i}?" for i in range(24)]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def answered(transom: Call, instruction_tuned: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """Write a test set that has the model's own greedy answers as references, except for every second one; return it and the answers."""
    (tmp_path / "prompts").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    found = transom("generate", instruction_tuned, "--input", tmp_path / "prompts", "--temperature", "0", "--json").json
    answers = [each["continuations"][0]["text"] for each in found]
    assert all(answer.strip() for answer in answers)
    references = [f" {answer}\n" if i % 2 else "another answer" for i, answer in enumerate(answers)]
    rows = [{"prompt": prompt, "answer": reference} for prompt, reference in zip(PROMPTS, references, strict=True)]
    return write_rows(tmp_path / "test.jsonl", rows), answers


def test_answers_are_scored_listed_written_and_noted(
    transom: Call, instruction_tuned: Path, answered: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, answers = answered
    references = [row["answer"] for row in rows_of(path)]
    command = ("evaluate", instruction_tuned, "--instructions", path)
    outcome = transom(*command, "--output", tmp_path / "out.jsonl", "--json")
    value = outcome.json
    assert (value["instructions"], value["n_exact"], value["exact_match"]) == (24, 12, 0.5)
    assert (
        value["chrf"]["score"] == pytest.approx(sacrebleu.corpus_chrf(answers, [references]).score) and "nc:6" in value["chrf"]["signature"]
    )
    assert [each["line"] for each in value["wrong_answers"]] == list(range(1, 20, 2)), "the first ten"
    assert value["wrong_answers"][0] == {"line": 1, "prompt": PROMPTS[0], "answer": answers[0], "reference": "another answer"}
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["answer"] for row in rows] == answers and [row["reference"] for row in rows] == references
    entry = rows_of(instruction_tuned / "ledger.jsonl")[-1]
    assert (Path(entry["file"]), entry["command"]) == (path, "evaluate")
    shown = transom(*command)
    lines = shown.out.splitlines()
    assert lines[0] == "Wrong answers: 10 of 12" and lines.count("reference: another answer") == 10 and f"prompt:    {PROMPTS[0]}" in lines
    assert lines[-1] == "exact match 50.00%: 12 of 24 answers"
    assert lines[-2].startswith(f"chrf {value['chrf']['score']:.2f} (nrefs:1|")
    assert "answers" in shown.err and outcome.err == "", "progress is shown, but not beside JSON"


def test_a_prompt_with_several_wrong_answers_is_shown_once(transom: Call, instruction_tuned: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i % 2}?", "answer": f"number {i}"} for i in range(6)]
    value = transom("evaluate", instruction_tuned, "--instructions", write_rows(tmp_path / "test.jsonl", rows), "--json").json
    assert value["exact_match"] == 0 and [each["line"] for each in value["wrong_answers"]] == [1, 2]


def test_a_long_text_is_shown_without_its_middle(transom: Call, instruction_tuned: Path, tmp_path: Path) -> None:
    row = {"prompt": "first " + "word\n" * 60 + "last?", "answer": "x" * 100}
    lines = transom("evaluate", instruction_tuned, "--instructions", write_rows(tmp_path / "test.jsonl", [row])).out.splitlines()
    (prompt,) = [line.removeprefix("prompt:    ") for line in lines if line.startswith("prompt:")]
    assert prompt.startswith("first word word") and prompt.endswith("word last?") and prompt.count(" … ") == 1 and 90 < len(prompt) <= 103
    assert f"reference: {'x' * 100}" in lines


def test_decoding_is_greedy_although_the_recipe_samples(
    transom: Call, instruction_tuned: Path, answered: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(instruction_tuned, tmp_path / "sampling"))
    recipe = (run / "recipe.toml").read_text()
    assert recipe.count("\ntemperature = 0.0\n") == 1
    (run / "recipe.toml").write_text(recipe.replace("\ntemperature = 0.0\n", "\ntemperature = 2.0\n"))
    command = ("evaluate", run, "--instructions", answered[0], "--json")
    assert transom(*command).json["n_exact"] == 12
    sampled = [transom(*command, "--temperature", "2", "--seed", seed).json for seed in ("1", "1", "2")]
    assert sampled[0]["n_exact"] < 12 and sampled[0] == sampled[1] != sampled[2]
    assert "greedy decoding, so these options have no effect: --seed" in transom(*command[:-1], "--seed", "1").err


def test_what_limits_an_answer_is_counted(transom: Call, instruction_tuned: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "What is 1?", "answer": "1"}, {"prompt": "What is " + "3 " * 40, "answer": "3"}]
    command = ("evaluate", instruction_tuned, "--instructions", write_rows(tmp_path / "test.jsonl", rows), "--max-new-tokens", "1")
    value = transom(*command, "--json").json
    assert (value["n_too_long"], value["n_cut_off"]) == (1, 2)
    notes = transom(*command).err
    assert "1 of 2 prompts with their answers exceed the context window of 16 tokens: answers were continued from the last half" in notes
    assert "2 of 2 answers were cut off at 1 tokens (--max-new-tokens)" in notes
    assert "test.jsonl:2: expected prompt and new text to fit" in transom(*command, "--too-long", "refuse").error


def test_turns_before_are_in_the_prompt_by_the_template_of_the_run(transom: Call, assistant: Path, tmp_path: Path) -> None:
    said = [("user", "Hi"), ("assistant", "Hello."), ("user", "Who are you?"), ("assistant", "A model.")]
    chat = {"messages": [{"role": role, "content": content} for role, content in said]}
    path = write_rows(tmp_path / "chats.jsonl", [chat])
    command = ("evaluate", assistant, "--instructions", path, "--output", tmp_path / "out.jsonl", "--max-new-tokens", "8")
    assert transom(*command).code == 0
    first, second = rows_of(tmp_path / "out.jsonl")
    assert (first["prompt"], second["prompt"]) == ("Hi", "Q: Hi\nA: Hello.\nWho are you?")
    generated = transom("generate", assistant, second["prompt"], "--max-new-tokens", "8", "--json").json
    assert second["answer"] == generated[0]["continuations"][0]["text"] and second["reference"] == "A model."


def test_columns_are_remembered_from_the_run_or_chosen(transom: Call, instruction_tuned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(instruction_tuned, tmp_path / "run"))
    recipe = (run / "recipe.toml").read_text()
    train = recipe.index("[data.train]\n") + len("[data.train]\n")
    (run / "recipe.toml").write_text(f'{recipe[:train]}prompt_field = "riddle"\nanswer_field = "solution"\n{recipe[train:]}')
    rows = [{"riddle": "What is 1?", "solution": "a sun", "other": "a moon"}]
    path = write_rows(tmp_path / "test.jsonl", rows)
    remembered = transom("evaluate", run, "--instructions", path)
    assert "reference: a sun" in remembered.out and "prompt from 'riddle', answer from 'solution'" in remembered.err
    assert "reference: a moon" in transom("evaluate", run, "--instructions", path, "--answer-field", "other").out
    chosen = ("--prompt-field", "riddle", "--answer-field", "solution")
    assert "reference: a sun" in transom("evaluate", instruction_tuned, "--instructions", path, *chosen).out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("RUN",), "RUN: expected prompts and answers for an instruction-tuned model, found none; give --instructions FILE"),
        (("RUN", "--pairs", "FILE"), "for an instruction-tuned model, found --pairs; give --instructions FILE"),
        (("RUN", "--pairs", "FILE", "--instructions", "FILE"), "or --instructions, found both; give one of them"),
        (("RUN", "--instructions", "FILE", "--beam-size", "2"), "expected --beam-size only with a translator, found --beam-size with an"),
        (("RUN", "--instructions", "FILE", "--tokenized", "de"), "expected --tokenized only with a translator"),
        (("RUN", "--instructions", "FILE", "--too-long", "split"), "--too-long: expected window or refuse with an instruction-tuned model"),
        (("RUN", "--instructions", "nowhere.jsonl"), "nowhere.jsonl"),
        (("RUN", "--instructions", "FILE", "--output", "FILE"), "expected a new output file, found the input"),
        (("TRANSLATOR",), "expected --source and --target, or --pairs, found none of them"),
        (
            ("TRANSLATOR", "--instructions", "FILE"),
            "expected --instructions only with an instruction-tuned model, found --instructions",
        ),
        (("TRANSLATOR", "--pairs", "FILE", "--temperature", "1"), "expected --temperature only with an instruction-tuned model"),
        (("TRANSLATOR", "--pairs", "FILE", "--too-long", "window"), "--too-long: expected split or refuse with a translator, found window"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], expected: str, transom: Call, instruction_tuned: Path, trained: Trained, asked: Path) -> None:
    places = {"RUN": instruction_tuned, "TRANSLATOR": trained.folder, "FILE": asked}
    before = (instruction_tuned / "ledger.jsonl").read_bytes() if (instruction_tuned / "ledger.jsonl").exists() else None
    error = transom("evaluate", *(places.get(argument, argument) for argument in arguments)).error
    assert expected.replace("RUN:", f"{instruction_tuned}:") in error
    assert before == ((instruction_tuned / "ledger.jsonl").read_bytes() if before is not None else None), "no access is noted"


def test_a_language_model_is_sent_to_score(transom: Call, spoken: LanguageRun, asked: Path) -> None:
    for options in ((), ("--instructions", asked), ("--source", asked, "--target", asked)):
        assert transom("evaluate", spoken.folder, *options).error == (
            f"error: {spoken.folder}: expected a run that transom evaluate can use, found one for transom generate;"
            f" use transom score {spoken.folder} --text PATH"
        )
