"""A run in the lm-evaluation-harness gets the numbers of its export in the harness's own model ``hf``, on tasks made here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
import pytest
import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.api.registry import model_registry
from lm_eval.tasks import TaskManager
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from transom.errors import ConfigError
from transom.exchange.export_run import export_run
from transom.exchange.import_folder import import_folder
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
    """Write three tasks with data."""
    folder = tmp_path_factory.mktemp("harness")
    (folder / "text.txt").write_text("".join(f"the {word} of {i} is {word * 2}\n" for i in range(60) for word in WORDS))
    long = " ".join(f"the {word} of {i} is {word * 2}" for i in range(9) for word in WORDS)
    texts = [{"text": text} for text in (long, "the moon of 7 is moonmoon", "a")]
    for name, rows in (("choices", QUESTIONS), ("texts", texts)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "tasks").mkdir()
    for name, text in zip(TASKS, (CHOICES, CONTINUATIONS, PERPLEXITY), strict=True):
        (folder / "tasks" / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder


class Compared(NamedTuple):
    """A run, and a folder of the transformers library with the same model."""

    run: Path
    theirs: Path


@pytest.fixture(scope="module")
def llama(folder: Path) -> Compared:
    """Import a random Llama, whose tokenizer puts BOS before each text."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False)
    library.train([str(folder / "text.txt")], trainer)
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, bos_token="<s>", eos_token="</s>", pad_token="</s>", clean_up_tokenization_spaces=False
    ).save_pretrained(folder / "llama")
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=300, **sizes, max_position_embeddings=WINDOW, bos_token_id=0, eos_token_id=1)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.05, 0.3)
    model.save_pretrained(folder / "llama")
    import_folder(folder / "llama", folder / "imported")
    return Compared(folder / "imported", folder / "llama")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Compared:
    """Train a small model, and export it."""
    return train_and_export(folder, "byte-bpe")


def train_and_export(folder: Path, kind: str) -> Compared:
    """Train a small model with a tokenizer of a kind, and export it."""
    fields = {"tokenizer.kind": kind, "tokenizer.vocab_size": 300}
    fields |= {f"model.{name}": value for name, value in MODEL.items()} | {f"training.{name}": value for name, value in TRAINING.items()}
    run, exported = folder / f"run-{kind}", folder / f"exported-{kind}"
    train("text-bpe", run, fields, text=folder / "text.txt", progress=False)
    export_run(run, exported)
    return Compared(run, exported)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")


def evaluate(model: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Run the three tasks, and return metrics and answers."""
    tasks = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    return lm_eval.simple_evaluate(
        model, model_args=options, tasks=list(TASKS), task_manager=tasks, log_samples=True, bootstrap_iters=0, device="cpu"
    )


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Compare all metrics, all log-likelihoods, all marks of greedy answers, and all texts."""
    assert ours["results"].keys() == theirs["results"].keys() == set(TASKS)
    for task in TASKS:
        for name, value in theirs["results"][task].items():
            assert ours["results"][task][name] == (pytest.approx(value, rel=RELATIVE) if isinstance(value, float) else value)
        assert len(ours["samples"][task]) == len(theirs["samples"][task]) > 2
        for a, b in zip(ours["samples"][task], theirs["samples"][task], strict=True):
            for (found,), (expected,) in zip(a["resps"], b["resps"], strict=True):
                if task == "local_choices":
                    assert found == (pytest.approx(expected[0], rel=RELATIVE), expected[1])
                else:
                    assert found == (expected if isinstance(expected, str) else pytest.approx(expected, rel=RELATIVE))


@pytest.mark.long
def test_an_imported_run_gets_the_numbers_of_its_source(llama: Compared, folder: Path) -> None:
    theirs = evaluate("hf", folder, pretrained=str(llama.theirs), dtype="float32", batch_size=2)
    for batch_size in (3, "auto"):
        assert_same(evaluate("transom", folder, run=str(llama.run), precision="fp32", batch_size=batch_size), theirs)


def test_a_run_gets_the_numbers_of_its_export(trained: Compared, folder: Path) -> None:
    ours = evaluate("transom", folder, run=str(trained.run), precision="fp32", batch_size=3)
    assert_same(ours, evaluate("hf", folder, pretrained=str(trained.theirs), dtype="float32", batch_size=2))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bpe", "char", "whitespace", "unigram"])
def test_it_gets_them_with_every_kind_of_tokenizer(kind: str, folder: Path) -> None:
    compared = train_and_export(folder, kind)
    ours = evaluate("transom", folder, run=str(compared.run), precision="fp32", batch_size=3)
    assert_same(ours, evaluate("hf", folder, pretrained=str(compared.theirs), dtype="float32", batch_size=2))


def request(*arguments: Any) -> Instance:
    return Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0)


def test_sampling_depends_on_the_seed_and_on_nothing_else(llama: Compared) -> None:
    options = {"do_sample": True, "temperature": 0.9, "max_gen_toks": 12, "until": []}
    prompts = ["the sun", "the wind of", "the sun", "a hill"]
    texts = {}
    for seed, batch_size in ((1, 1), (1, 4), (2, 4)):
        model = TransomLM(str(llama.run), "fp32", batch_size, seed=seed)
        texts[seed, batch_size] = model.generate_until([request(prompt, options) for prompt in prompts], disable_tqdm=True)
    assert texts[1, 1] == texts[1, 4] != texts[2, 4] and texts[1, 1][0] != texts[1, 1][2]


def test_mistakes_are_named(llama: Compared, trained: Compared, folder: Path) -> None:
    model = TransomLM(str(llama.run), "fp32")
    for arguments, message in (
        ({"max_gen_toks": WINDOW}, rf"max_gen_toks: expected fewer than {WINDOW}, the context window, found {WINDOW}"),
        ({"num_beams": 4, "max_gen_toks": 4}, r"generation_kwargs: expected temperature, .* found 'num_beams'; leave it out"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.generate_until([request("the sun", arguments)], disable_tqdm=True)
    with pytest.raises(
        ConfigError, match=r"expected continuations of at most 48 tokens, the context window, found \d+; leave out this task"
    ):
        model.loglikelihood([request("a", " the sun" * 60)], disable_tqdm=True)
    with pytest.raises(ConfigError, match=r"max_length: expected 1 to 48, the context window of .*, found 49"):
        TransomLM(str(trained.run), max_length=49)
    with pytest.raises(ConfigError, match=r"batch_size: expected at least 1, or auto, found 0"):
        TransomLM(str(trained.run), batch_size=0)


def test_a_mistake_at_the_command_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(lambda: evaluate("transom", folder, run=str(folder / "nowhere")))
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {folder / 'nowhere'}: expected a run folder")
    assert {"transom", "hf"} <= set(model_registry.keys())


@pytest.mark.soak  # the harness's command reads the thousands of tasks that it comes with
def test_the_command_is_that_of_the_harness(llama: Compared, folder: Path) -> None:
    command = [sys.executable, "-m", "transom.lm_eval", "--model", "transom", "--device", "cpu"]
    command += ["--include_path", str(folder / "tasks"), "--tasks", "local_choices", "--model_args", f"run={llama.run},precision=fp32"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "transom ({'run': " in found.stdout and "local_choices" in found.stdout, found.stdout
