"""The commands of language models: train on one's own text, go on with it, score it, and what is said of mistakes."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.conftest import Call, Trained, sets
from transom.cli.main import main

TINY = (
    "tokenizer.vocab_size=300",
    "model.d_model=16",
    "model.d_ff=16",
    "model.n_heads=2",
    "model.n_layers=1",
    "model.max_seq_len=16",
    "training.batch_tokens=256",
    "training.validate_every=5",
    "training.checkpoint_every=5",
    "training.precision=fp32",
    "training.max_steps=10",
    "decoding.max_new_tokens=12",
)


class LanguageRun(NamedTuple):
    """A tiny run and the folder of its text."""

    folder: Path
    text: Path


@pytest.fixture(scope="session")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> LanguageRun:
    """Train a tiny language model once."""
    folder = tmp_path_factory.mktemp("spoken")
    text = folder / "text"
    text.mkdir()
    for i in range(25):
        (text / f"{i}.txt").write_text("".join(f"the {word} of {i} is {word * 2}\n" for word in ("sun", "moon", "star")))
    assert main(["train", "text-bpe", "--text", str(text), *sets(*TINY), "--out", str(folder / "run"), "--json"]) == 0
    return LanguageRun(folder / "run", text)


def test_generation_is_traced_step_by_step(spoken: LanguageRun, transom: Call) -> None:
    options = ("the sun", "--seed", "3", "--max-new-tokens", "4")
    plain = transom("generate", spoken.folder, *options).out.strip()
    lines = transom("generate", spoken.folder, *options, "--trace", "steps").out.splitlines()
    assert lines[0] == "step 1" and sum(line.startswith("step ") for line in lines) in (4, 5)
    assert plain.endswith(lines[-1].strip())
    (answer,) = transom("generate", spoken.folder, *options, "--trace", "steps", "--json").json
    chosen = [(*step["kept"], *step["finished"])[0] for step in answer["steps"]]
    assert all(0 < each["p"] <= 1 for each in chosen)
    assert [len(step["hypotheses"]) for step in answer["steps"]] == [1] * len(chosen)


def test_training_leaves_a_whole_run_folder(spoken: LanguageRun) -> None:
    names = {path.name for path in spoken.folder.iterdir()}
    assert {"recipe.toml", "config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl", "report.html", "README.md"} <= names
    card = (spoken.folder / "README.md").read_text()
    assert "A language model: a decoder-only Transformer" in card and 'transom generate run "The beginning of a text"' in card
    page = (spoken.folder / "report.html").read_text()
    assert "Continuations" in page and "Bits per byte" in page and "Translations" not in page


def test_generate_streams_the_prompt_and_what_follows(transom: Call, spoken: LanguageRun) -> None:
    streamed = transom("generate", spoken.folder, "the sun", "--seed", "3", "--precision", "fp32")
    whole = transom("generate", spoken.folder, "the sun", "--seed", "3", "--precision", "fp32", "--json")
    assert streamed.code == whole.code == 0
    (record,) = whole.json
    (answer,) = record["continuations"]
    assert streamed.out == f"the sun{answer['text']}\n"
    assert set(answer) == {"text", "n_tokens", "finish_reason", "windows"} and answer["n_tokens"] <= 12
    assert transom("generate", spoken.folder, "", "--max-new-tokens", "3").code == 0, "a prompt may be empty"


def test_generate_takes_prompts_from_a_file_and_several_samples(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("the moon\nthe\n")
    made = transom("generate", spoken.folder, "--input", tmp_path / "prompts", "--num-samples", "2", "--precision", "fp32")
    assert made.code == 0 and made.out.count("---\n") == 3 and made.out.startswith("the moon")
    stopped = transom("generate", spoken.folder, "the", "--stop", "\\n", "--stop", "i", "--json", "--precision", "fp32").json
    assert not {"\n", "i"} & set(stopped[0]["continuations"][0]["text"])


def test_what_a_draw_would_need_is_told_where_nothing_is_drawn(transom: Call, spoken: LanguageRun) -> None:
    greedy = transom("generate", spoken.folder, "the", "--temperature", "0", "--top-k", "5", "--num-samples", "2", "--precision", "fp32")
    assert greedy.code == 0 and "greedy decoding, so these options have no effect: --top-k, --num-samples\n" in greedy.err
    for asked in (["--temperature", "0"], ["--temperature", "0.5", "--top-k", "5"]):
        assert "greedy decoding" not in transom("generate", spoken.folder, "the", *asked, "--precision", "fp32").err


def test_a_text_that_outgrows_the_model_is_said(transom: Call, spoken: LanguageRun) -> None:
    grown = transom("generate", spoken.folder, "the", "--max-new-tokens", "60", "--min-new-tokens", "59")
    assert (
        grown.code == 0
        and "exceeded the context window of 16 tokens: whenever the window was full, generation continued from its last 8 tokens"
        in grown.err
    )
    refused = transom("generate", spoken.folder, "the", "--max-new-tokens", "60", "--too-long", "refuse")
    assert "PROMPT:1: expected prompt and new text to fit model.max_seq_len = 16" in refused.error


@pytest.mark.long
def test_early_exits_are_told(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    early = transom("generate", spoken.folder, "the sun", "--early-exit-threshold", "0.5", "--precision", "fp32")
    assert early.code == 0 and "mean exit after block 1.00 of 1; " in early.err and early.out.startswith("the sun")
    assert "trained without training.early_exit_loss, so only its last block was trained to predict tokens" in early.err
    fields = (*TINY, "training.early_exit_loss=linear", "training.max_steps=1")
    assert transom("train", "text-bpe", "--text", spoken.text, *sets(*fields), "--out", tmp_path / "run").code == 0
    learned = transom("generate", tmp_path / "run", "the sun", "--early-exit-threshold", "0.5", "--precision", "fp32")
    assert learned.code == 0 and "mean exit" in learned.err and "was trained without" not in learned.err
    told = transom("generate", spoken.folder, "the sun", "--early-exit-threshold", "0.01", "--json", "--precision", "fp32")
    assert "mean exit" in told.err and json.loads(told.out)[0]["prompt"] == "the sun"
    assert "mean exit" not in transom("generate", spoken.folder, "the sun", "--early-exit-threshold", "1", "--precision", "fp32").err
    assert "'--early-exit-threshold'" in transom("generate", spoken.folder, "the sun", "--early-exit-threshold", "1.5").error


def test_score_gives_a_line_a_text_and_the_totals(transom: Call, spoken: LanguageRun) -> None:
    whole = transom("score", spoken.folder, "--text", spoken.text, "--precision", "fp32")
    lines = whole.out.splitlines()
    assert whole.code == 0 and len(lines) == 26 and "bits per byte over" in lines[-1]
    assert "25 of 25 texts exceed the context window of 15 tokens: read in windows" in whole.err
    value = transom("score", spoken.folder, "--text", spoken.text, "--document", "line", "--precision", "fp32", "--json").json
    assert len(value["texts"]) == 75 and value["n_bytes"] == sum(len(path.read_bytes()) - 3 for path in spoken.text.iterdir())
    cut = transom("score", spoken.folder, "--text", spoken.text, "--too-long", "truncate")
    assert "tokens dropped" in cut.err
    ledger = [json.loads(line) for line in (spoken.folder / "ledger.jsonl").read_text().splitlines()]
    assert {Path(record["file"]).name for record in ledger if record["command"] == "score"} == {path.name for path in spoken.text.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "RUN", "x", "--input", "y"), "expected PROMPT or --input, found both"),
        (("generate", "RUN", "x", "--top-p", "0"), "top_p: expected"),
        (("generate", "RUN", "x", "--repetition-penalty", "0"), "repetition_penalty: expected"),
        (("generate", "RUN", "x", "--temperature", "nan"), "invalid value for '--temperature'"),
        (("generate", "RUN", "x", "--precision", "int8"), "precision = 'int8' requires the native decoder, but"),
        (("score", "RUN", "x", "--text", "y"), "expected TEXT or --input, --text, or --source and --target (or --pairs), found several"),
        (("score", "RUN", "--text", "nowhere"), "nowhere: no such file"),
        (("score", "RUN", "--text", "TEXT", "--overlap", "16"), "expected an overlap from 0 to 15"),
        (("score", "RUN", "--text", "TEXT", "--overlap", "2", "--too-long", "truncate"), "expected an overlap with too_long = 'window'"),
        (("score", "RUN", "--text", "TEXT", "--start", "1"), "--start: start: expected a number less than 1, found 1.0"),
        (("translate", "RUN", "x"), "expected a run that transom translate can use, found one for transom generate"),
        (("train", "text-bpe", "--valid-text", "x"), "--valid-text requires --text"),
        (("train", "text-bpe"), "name your own files with --text"),
        (("train", "text-bpe", "--text", "TEXT", "--set", "model.n_encoder_layers=2"), "unknown field model.n_encoder_layers"),
        (("train", "text-bpe", "--text", "TEXT", "--set", "task=languge"), "expected a task, found 'languge'; did you mean language?"),
        (
            ("train", "text-bpe", "--text", "TEXT", "--set", "model.preset=transformer-base"),
            "'recurrent-decoder', found 'seq2seq'",
        ),
        (("train", "text-bpe", "--text", "TEXT", "--suffix", ".py"), "expected a file that ends with .py"),
    ],
)
def test_mistakes_get_one_line(transom: Call, spoken: LanguageRun, arguments: tuple[str, ...], words: str) -> None:
    places = {"RUN": spoken.folder, "TEXT": spoken.text}
    assert words in transom(*(places.get(argument, argument) for argument in arguments)).error


def test_a_translator_does_not_go_on_with_text(transom: Call, trained: Trained, spoken: LanguageRun) -> None:
    assert "expected a run that transom generate can use, found one for transom translate" in transom("generate", trained.folder, "x").error
    assert "expected a run that transom generate can use" in transom("score", trained.folder, "--text", spoken.text).error


def test_a_tokenizer_is_trained_on_text(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    out = tmp_path / "tokenizer.json"
    made = transom("tokenizer", "train", "text-bpe", "--text", spoken.text, "--set", "tokenizer.vocab_size=300", "--out", out)
    assert made.code == 0 and out.exists() and "both sides: bpe, 291 symbols" in made.out


@pytest.mark.parametrize("balance", ["aux-loss", "bias"])
def test_a_mixture_of_experts_by_two_words(transom: Call, tmp_path: Path, balance: str) -> None:
    (tmp_path / "input.txt").write_text("to be or not to be, that is the question\n" * 40)
    tiny = [each for each in TINY if not each.startswith(("tokenizer", "decoding"))]
    mixture = ("model.feed_forward=moe", f"model.feed_forward.load_balancing={balance}", "model.feed_forward.n_experts=3")
    fields = [*tiny, *mixture, f"data.root={tmp_path}", "training.log_every=5", "training.learning_rate=0.01"]
    trained = transom("train", "shakespeare-char", *sets(*fields), "--out", tmp_path / "run")
    assert trained.code == 0 and "active per token; " in trained.err and "max expert load" in trained.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["kind"] == "train"]
    assert train[-1]["nll"] < train[0]["nll"] and all(
        1 <= line["max_expert_load"] <= 1.5 and line["expert_overflow"] == 0 for line in train
    )
    assert "mixture of 3 swiglu experts, top 2 per token" in (tmp_path / "run" / "README.md").read_text()
    said = transom("generate", tmp_path / "run", "to be", "--max-new-tokens", "5", "--precision", "fp32", "--json")
    assert said.code == 0 and said.json
