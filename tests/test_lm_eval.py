"""A run in the lm-evaluation-harness gets the numbers of its export in the harness's own model ``hf``, on tasks made here."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from transom.errors import ConfigError
from transom.exchange.export_run import export_run
from transom.lm_eval import TransomLM, main
from transom.tasks.train import train

WINDOW, RELATIVE = 48, 1e-4
WORDS = ("sun", "moon", "star", "sea", "wind", "hill")
MODEL = {
    "d_model": 32,
    "d_ff": 64,
    "n_heads": 2,
    "n_layers": 2,
    "max_seq_len": WINDOW,
    "norm": "layernorm",
    "position": "learned",
    "feed_forward": "gelu-tanh",
    "tie_embeddings": True,
}
TRAINING = {"batch_tokens": 512, "validate_every": 30, "checkpoint_every": 30, "precision": "fp32", "max_steps": 60, "learning_rate": 0.01}
QUESTIONS = [
    {"question": f"the {word} of {i} is", "choices": [f" {word * 2}", " sea", " no such thing as the wind", "x"], "answer": i % 4}
    for i, word in enumerate(WORDS)
] + [{"question": "", "choices": [" the sun", " wind of the sea", "hill"], "answer": 1}]
CHOICES = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
CONTINUATIONS = """
task: local_continuations
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "the sea of 3 is {{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{until: ["\\n", " of"], max_gen_toks: 20}}
metric_list: [{{metric: exact_match}}]
"""
PERPLEXITY = """
task: local_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/texts.jsonl}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
TASKS = ("local_choices", "local_continuations", "local_perplexity")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a trained run, its export, and three tasks with data."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "text.txt").write_text("".join(f"the {word} of {i} is {word * 2}\n" for i in range(60) for word in WORDS))
    fields = {"tokenizer.vocab_size": 300, **{f"model.{k}": v for k, v in MODEL.items()}, **{f"training.{k}": v for k, v in TRAINING.items()}}
    train("text-bpe", folder / "run", fields, text=folder / "text.txt", progress=False)
    export_run(folder / "run", folder / "exported")
    long = " ".join(f"the {word} of {i} is {word * 2}" for i in range(9) for word in WORDS)
    texts = [{"text": text} for text in (long, "the moon of 7 is moonmoon", "a")]
    for name, rows in (("choices", QUESTIONS), ("texts", texts)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "tasks").mkdir()
    for name, text in zip(TASKS, (CHOICES, CONTINUATIONS, PERPLEXITY), strict=True):
        (folder / "tasks" / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")


def evaluate(model: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Run the three tasks, and return metrics and answers."""
    tasks = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    return lm_eval.simple_evaluate(model, model_args=options, tasks=list(TASKS), task_manager=tasks, log_samples=True, bootstrap_iters=0)


def test_all_numbers_are_those_of_the_export(folder: Path) -> None:
    ours = evaluate("transom", folder, run=str(folder / "run"), precision="fp32", batch_size=3)
    theirs = evaluate("hf", folder, pretrained=str(folder / "exported"), dtype="float32", batch_size=2)
    print(json.dumps(ours["results"], indent=1, default=str), json.dumps(theirs["results"], indent=1, default=str))
    for task in TASKS:
        for a, b in zip(ours["samples"][task], theirs["samples"][task]):
            print(task, a["resps"], b["resps"])
    assert 0
