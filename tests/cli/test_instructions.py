"""Instructions on the command line: train on one's own or on exercises, from a language model too, answer, and what is said of mistakes."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from tests.cli.test_language import TINY, LanguageRun, spoken
from transom.cli.main import main

__all__ = ["spoken"]


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write prompts and answers."""
    path = tmp_path_factory.mktemp("asked") / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"What is {i}?", "answer": f"{i} is a sun"}) + "\n" for i in range(120)))
    return path


@pytest.fixture(scope="session")
def instruction_tuned(asked: Path) -> Path:
    """Train a tiny model that answers once."""
    out = asked.parent / "run"
    assert (
        main(["train", "instructions", "--instructions", str(asked), *sets(*TINY, "model.mask=prefix-lm"), "--out", str(out), "--json"])
        == 0
    )
    return out


def test_pages_say_what_the_run_is(instruction_tuned: Path) -> None:
    card, page = (instruction_tuned / "README.md").read_text(), (instruction_tuned / "report.html").read_text()
    assert "An instruction model: a decoder-only Transformer" in card and 'transom generate run "An instruction"' in card
    assert "answer tokens per second" in card and "1% of the training instructions, held out" in card
    assert "Predictions" in page and "What is" in page and "Continuations" not in page


def test_the_answer_is_given_alone(transom: Call, instruction_tuned: Path, tmp_path: Path) -> None:
    streamed = transom("generate", instruction_tuned, "What is 3?", "--precision", "fp32")
    whole = transom("generate", instruction_tuned, "What is 3?", "--precision", "fp32", "--json")
    (answer,) = whole.json[0]["continuations"]
    assert streamed.code == 0 and streamed.out == f"{answer['text']}\n" and "What" not in streamed.out
    (tmp_path / "prompts").write_text("What is 3?\nWhat is 4?\n")
    both = transom("generate", instruction_tuned, "--input", tmp_path / "prompts", "--precision", "fp32")
    assert both.out.startswith(f"{answer['text']}\n---\n") and both.out.count("---\n") == 1
    long = transom("generate", instruction_tuned, "What is " + "3 " * 40, "--precision", "fp32")
    assert "exceeded the context window of 16 tokens" in long.err
    refused = transom("generate", instruction_tuned, "What is " + "3 " * 40, "--too-long", "refuse")
    assert "expected prompt and new text to fit model.max_seq_len = 16" in refused.error


def test_a_language_model_learns_to_answer_by_few_numbers(transom: Call, asked: Path, spoken: LanguageRun, tmp_path: Path) -> None:
    adapter = ("training.adapter=lora", "training.adapter.rank=2", 'training.adapter.target_modules=["attn.q","ff.up"]')
    flags = ["--init-from", spoken.folder, "--instructions", asked, "--valid-instructions", asked]
    fields = [field for field in TINY if not field.startswith(("tokenizer", "model"))]
    made = transom("train", "instructions", *flags, *sets(*fields, *adapter), "--out", tmp_path / "run")
    assert made.code == 0 and "lora of rank 2 on attn.q, ff.up: 128 parameters are trained" in made.err
    assert (tmp_path / "run" / "adapter.safetensors").stat().st_size < (tmp_path / "run" / "model.safetensors").stat().st_size / 5
    assert "from the weights of another run, by lora of rank 2 on attn.q, ff.up" in (tmp_path / "run" / "README.md").read_text()
    assert transom("generate", tmp_path / "run", "What is 3?").code == 0


@pytest.mark.long
def test_exercises_need_no_file(transom: Call, tmp_path: Path) -> None:
    few = ("data.generate.n_train=600", "data.generate.n_valid=60", "data.generate.n_test=60")
    fields = [*(field for field in TINY if "max_seq_len" not in field), "training.validate_samples=2"]
    made = transom("train", "exercises", *sets(*fields, *few), "--out", tmp_path / "run")
    assert made.code == 0 and "loss: " in made.err and "of the tokens contribute" in made.err
    out = tmp_path / "tokenizer.json"
    assert transom("tokenizer", "train", "exercises", *sets(*few, "tokenizer.vocab_size=300"), "--out", out).code == 0 and out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "instructions"), "name your own files with --instructions"),
        (("train", "instructions", "--valid-instructions", "x"), "--valid-instructions requires --instructions"),
        (("train", "instructions", "--instructions", "FILE", "--text", "x"), "expected data files of one kind"),
        (("train", "instructions", "--instructions", "nowhere.tsv"), "nowhere.tsv"),
        (("train", "text-bpe", "--instructions", "FILE"), "trains on --text, found --instructions"),
        (("train", "instructions", "--instructions", "FILE", "--set", "training.adapter=lora"), "give one with --init-from"),
        (("train", "instructions", "--instructions", "FILE", "--set", "training.adapter=lorra"), "found 'lorra'"),
        (("train", "instructions", "--instructions", "FILE", "--set", 'training.adapter.target_modules=["attn.x"]'), "found ['attn.x']"),
        (
            ("train", "instructions", "--instructions", "FILE", "--set", "training.adapter.target_modules=[]"),
            "expected at least one linear layer in target_modules",
        ),
        (
            ("train", "instructions", "--instructions", "FILE", "--set", "model.mask=prefx"),
            "expected one of 'causal', 'prefix-lm', found 'prefx'",
        ),
    ],
)
def test_mistakes_get_one_line(transom: Call, asked: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    places = {"FILE": str(asked)}
    assert words in transom(*(places.get(argument, argument) for argument in arguments), "--out", tmp_path / "out").error
