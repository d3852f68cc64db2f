"""The Python interface: training, loading, results that print and draw themselves, and what an editor knows of it."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import transom
from transom.config.arguments import as_overrides, data_arguments, errors_for_python, toml_value
from transom.config.task_registry import recipes_by_task
from transom.decoding.inference import Deferred
from transom.decoding.predictors.classifier import ClassPrediction
from transom.decoding.predictors.fill_mask import MaskPredictions, TokenPrediction
from transom.decoding.predictors.generator import Continuation
from transom.decoding.predictors.results import Alignment, Results
from transom.decoding.predictors.translator import Translation, Translator
from transom.errors import ConfigError, TransomError
from transom.inspection.pages.notebook import FILLS, scoped_style, to_notebook
from transom.tasks import train as training
from transom.tasks.tagging.predictor import TaggedText
from transom.tasks.task import task_class
from transom.tasks.train import DataArguments, RunResult

ENGLISH = ["the cat", "a dog", "two birds", "the dog", "a cat", "two cats"]
SPANISH = ["el gato", "un perro", "dos aves", "el perro", "un gato", "dos gatos"]
HOSTILE = "<script>alert(1)</script>\x1b[31m"
SMALL: dict[str, Any] = {
    "tokenizer.kind": "char",
    "model": {"d_model": 16, "d_ff": 16, "n_heads": 2, "max_seq_len": 48},
    "training": {"max_steps": 4, "batch_tokens": 256, "validate_every": 2, "checkpoint_every": 4, "log_every": 1, "precision": "fp32"},
}
"""A model that trains in a second."""

TRANSLATOR = {**SMALL, "model.n_encoder_layers": 1, "model.n_decoder_layers": 1, "training.validate_bleu": 2, "decoding.beam_size": 2}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a parallel text, training and validation; return the data arguments that name it."""
    folder = tmp_path_factory.mktemp("pairs")
    files = {"source": "train.en", "target": "train.es", "valid_source": "valid.en", "valid_target": "valid.es"}
    for name in files.values():
        lines = ENGLISH if name.endswith("en") else SPANISH
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return {argument: folder / name for argument, name in files.items()}


@pytest.fixture(scope="session")
def trained(pairs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Train a tiny translator by the public function."""
    return transom.train("translation", tmp_path_factory.mktemp("runs") / "run", TRANSLATOR, progress=False, **pairs)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def translator(trained: RunResult) -> Translator:
    """Load it."""
    found = trained.load()
    assert isinstance(found, Translator)
    return found


def test_dir_lists_the_public_names() -> None:
    predictors = ["AudioClassifier", "Classifier", "Embedder", "Generator", "ImageClassifier", "MaskFiller", "Tagger", "Translator"]
    assert {*dir(transom)} == {"TransomError", "__version__", "build", "edits", "explain", "load", "plot", "trace", "train", *predictors}
    assert {getattr(transom, name) for name in predictors} == {task_class(each).PREDICTOR for each in recipes_by_task().values()}
    assert transom.TransomError is TransomError


def test_train_takes_what_the_command_line_takes() -> None:
    from transom.cli.train import train as command

    python = [*inspect.signature(transom.train).parameters, *DataArguments.__annotations__]
    renamed = {"overrides": "set"}
    command_line = [renamed.get(name, name) for name in inspect.signature(command).parameters]
    assert [name for name in command_line if name not in python] == ["seeds", "as_json"]
    assert set(DataArguments.__annotations__) == set(data_arguments())
    for name, option in data_arguments().items():
        assert ("Sequence" in str(get_type_hints(DataArguments)[name])) == option.repeated, name


def test_the_result_says_what_was_trained_and_what_to_do_next(trained: RunResult) -> None:
    text = str(trained)
    assert text.startswith("translation model: an encoder-decoder Transformer, ") and " parameters\n" in text
    assert "best validation: loss " in text and "BLEU" in text and "4 steps in " in text and "all steps are done" in text
    assert f"model in: {trained.folder}" in text and f"transom.load({str(trained.folder)!r}).translate(" in text
    assert repr(trained).startswith(f"<run {trained.folder}: translation model") and "\n" not in repr(trained)
    stopped = RunResult(Path("run"), 3, "stopped", {}, 1.0, 2, "")
    assert "stopped: 3 steps in 1.0 s" in str(stopped) and "resume=True" in str(stopped)


def test_progress_is_shown_or_not(pairs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transom.train("translation", tmp_path / "a", TRANSLATOR, **pairs)  # type: ignore[arg-type]
    shown = capsys.readouterr()
    assert "step 2: validation loss" in shown.err and "max_steps reached" in shown.err and shown.out == ""
    transom.train("translation", tmp_path / "b", TRANSLATOR, progress=False, **pairs)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")


class Cell:
    """An output cell of a notebook, as IPython gives it."""

    def __init__(self, content: dict[str, str]) -> None:
        self.frames = [content]

    def update(self, content: dict[str, str], raw: bool) -> None:
        assert raw
        self.frames.append(content)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Make this process look like the kernel of a notebook; return the cells that are displayed."""
    found = list[Cell]()

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Cell:
        assert raw and display_id
        found.append(Cell(content))
        return found[-1]

    ipython, showing = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    showing.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", showing)
    return found


def test_progress_in_a_notebook(cells: list[Cell], pairs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transom.train("translation", tmp_path / "run", TRANSLATOR, **pairs)  # type: ignore[arg-type]
    (cell,) = cells
    assert "reading the data" in cell.frames[0]["text/plain"] and len(cell.frames) > 4
    last = cell.frames[-1]
    assert "max_steps reached" in last["text/plain"] and "step 4: validation loss" in last["text/plain"]
    assert "width:100.0%" in last["text/html"] and "BLEU" in last["text/html"]
    check_html(last["text/html"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "a.en"}, "source requires target"),
        ({"sources": "a.en"}, "train: expected an argument, found 'sources'; did you mean source"),
        ({"labeled_data": "a.tsv"}, r"translation trains on source and target \(or pairs\), found labeled_data"),
        ({"source": "a", "target": "b", "text": "c"}, r"expected data files of one kind, found source and target \(or pairs\) and text"),
        (
            {"set": {"training.max_stepz": 3}},
            r"set: training.max_stepz=3: unknown field training.max_stepz; did you mean training.max_steps",
        ),
        ({"set": "training.max_steps=3"}, "set: expected a mapping such as"),
        ({"set": {"training.max_steps": object()}}, "set: expected text, numbers, booleans, lists and mappings, found <object"),
    ],
)
def test_mistakes_are_named_in_the_terms_of_python(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        transom.train("translation", tmp_path / "run", **arguments)
    assert "--" not in str(caught.value)


def test_errors_name_arguments_not_options() -> None:
    with pytest.raises(ConfigError, match=r"^out: resume=1, init_from and max-steps stay a -- b$"), errors_for_python():
        raise ConfigError("--out: --resume=1, --init-from and max-steps stay a -- b")


def test_fields_become_overrides() -> None:
    fields = {"training.max_steps": 3, "model": {"d_model": 8, "position": {"kind": "rotary", "rope_theta": 1e4}}, "data.valid": None}
    assert as_overrides(fields) == [
        "training.max_steps=3",
        "model.d_model=8",
        'model.position={ "kind" = "rotary", "rope_theta" = 10000.0 }',
        'data.valid="none"',
    ]
    assert as_overrides(["a.b=1"]) == ["a.b=1"]
    assert toml_value(Path("/a b/c")) == '"/a b/c"' and toml_value([True, 'say "x"']) == '[true, "say \\"x\\""]'


def test_minutes_and_files_reach_the_recipe(trained: RunResult, pairs: dict[str, Path], tmp_path: Path) -> None:
    run = transom.train(
        "translation", tmp_path / "run", {**TRANSLATOR, "training.max_steps": 10**6}, minutes=0.005, progress=False, **pairs
    )  # type: ignore[arg-type]
    assert run.reason == "max_minutes" and "the time limit is reached" in str(run)
    again = transom.train("translation", tmp_path / "tuned", {"training.max_steps": 1}, init_from=trained.folder, progress=False, **pairs)  # type: ignore[arg-type]
    assert again.step == 1


FORBIDDEN = (
    "sacrebleu",
    "lxml",
    "sklearn",
    "matplotlib",
    "torch._dynamo",
    "torch._inductor",
    "transom.inspection.pages.report",
    "transom.cli",
    "rich",
)


def test_loading_imports_only_what_decoding_needs(trained: RunResult) -> None:
    script = "import sys, torch\nbefore = {*sys.modules}\nimport transom\ntransom.load(sys.argv[1])\nprint(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script, str(trained.folder)], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "transom.decoding.predictors.translator" in imported
    assert not [name for name in imported if name.startswith(FORBIDDEN)]


def test_loading_compiles_nothing(trained: RunResult, monkeypatch: pytest.MonkeyPatch) -> None:
    from transom.tasks import task

    made = list[object]()
    monkeypatch.setattr(task, "build_decoder_backend", lambda model, **_: made.append(model) or model)
    found = transom.load(trained.folder)
    assert not made
    found.translate(["the cat"])
    found.translate(["the cat"])
    assert len(made) == 1


def test_a_deferred_value_is_made_once() -> None:
    calls = list[int]()
    deferred = Deferred(lambda: calls.append(1) or len(calls))
    assert (deferred.value, deferred.value, calls) == (1, 1, [1])


def test_a_loaded_model_describes_itself(translator: Translator, trained: RunResult) -> None:
    n_parameters = sum(each.numel() for each in translator.model.parameters())
    assert repr(translator).startswith(f"<Translator: en to es, {n_parameters:,} parameters, ")
    assert repr(translator).endswith(f", from {trained.folder}>")


def test_translations_carry_their_alignment(translator: Translator) -> None:
    found = translator.translations(["the cat", "", "a dog"], beam_size=2)
    assert [each.text for each in found] == translator.translate(["the cat", "", "a dog"], beam_size=2) == str(found).split("\n")
    assert found[1].alignment is None and all(each.alignment is not None for each in found if each.text.strip())
    assert "".join(found[0].tokens).replace("▁", " ").strip() == found[0].text.strip()
    assert all(each.alignment is None for each in translator.translations(["the cat"], alignments=False))
    assert set(found[0].to_json()) == {"text", "score", "log_p", "pieces"}
    check_html(found._repr_html_())


def test_align_any_pair(translator: Translator) -> None:
    found = translator.align("the cat", "el gato")
    assert (found.source, found.target) == (("the", "cat", "[EOS]"), ("el", "gato", "[EOS]"))
    assert torch.allclose(found.weights.sum(-1), torch.ones(3))
    assert [target for target, _, _ in found.pairs] == list(found.target)
    assert "gato" in str(found) and json.dumps(found.to_json())
    assert found._repr_html_().count('class="cell"') >= 9
    with pytest.raises(ConfigError, match="decoder layer"):
        translator.align("the cat", "el gato", layer=7)


class Checked(HTMLParser):
    """Check that elements are closed in order; collect their tags."""

    VOID = ("br", "hr", "img")

    def __init__(self, fragment: str) -> None:
        super().__init__()
        self.open, self.tags = list[str](), list[str]()
        self.feed(fragment)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_html(fragment: str) -> list[str]:
    """Check that a fragment is well-formed, loads nothing and runs nothing; return its tags."""
    tags = Checked(fragment).tags
    assert not {"script", "iframe", "link", "img", "object"} & set(tags)
    assert "://" not in fragment and "url(" not in fragment and "\x1b" not in fragment
    return tags


def results() -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Give a result of each kind with hostile text in it, and what its drawing must hold."""
    alignment = Alignment((HOSTILE, "[EOS]"), ("gato", "[EOS]"), torch.tensor([[0.9, 0.1], [0.2, 0.8]]), "decoder.blocks.0.cross")
    yield alignment, ("<svg", 'class="cell"', "90%", FILLS["cell"])
    yield Results([Translation(HOSTILE, -1.0, -2.0, 2, alignment=alignment)]), ("log-probability -2.00", "2 pieces", "<svg")
    yield ClassPrediction("a", 0.75, {"a": 0.75, HOSTILE: 0.25}, 4, 2), ("width:75.0%", "75.0%", "2 windows", "4 tokens")
    yield ClassPrediction("0", 0.5, {str(n): 0.5 / (n + 1) for n in range(13)}), ("and 3 less probable classes",)
    yield MaskPredictions([[TokenPrediction(HOSTILE, 0.5)], [TokenPrediction("mat", 0.7)]], 0), ("mask 2", "width:70.0%")
    tokens, probabilities = ("the", " cat", HOSTILE), (1.0, 0.5, 0.0)
    yield Continuation("the cat", 3, "length", 0, tokens, probabilities), (" cat: 50.0%", "0.550)", "0.275)", "0.000)", "3 tokens")
    yield Continuation(HOSTILE, 3, "stop", 0), ("ended by a stop text",)
    yield TaggedText(["Ana", HOSTILE], ["B-PER", "O"], [0.9, 0.8], [], 1), ("entity", "B-PER 90.0%")
    yield Results([[TokenPrediction(str(n), 0.5)] for n in range(30)]), ("and 5 more",)


@pytest.mark.parametrize(
    ("result", "parts"), list(results()), ids=lambda value: type(value).__name__ if not isinstance(value, tuple) else ""
)
def test_results_draw_themselves_with_text_escaped(result: Any, parts: tuple[str, ...]) -> None:
    drawn = result._repr_html_()
    check_html(drawn)
    for part in parts:
        assert part in drawn, part
    assert str(result) and drawn.startswith('<div class="transom">')


def test_anything_else_is_drawn_as_its_text() -> None:
    assert "3 &lt; 4" in to_notebook("3 < 4")


def test_styles_reach_nothing_outside_of_the_fragment() -> None:
    style = scoped_style().text or ""
    rules = style.replace("@media (prefers-color-scheme: dark) {", "").split("{")[:-1]
    selectors = [part.strip() for rule in rules for part in rule.split("}")[-1].split(",")]
    assert len(selectors) > 40 and all(selector.startswith("div.transom") for selector in selectors)


def test_results_print_one_per_line() -> None:
    found = Results([Translation("one", 0.0, 0.0), Translation("two", 0.0, 0.0)])
    assert str(found) == "one\ntwo" and found[0].text == "one"
    assert str(Results([[TokenPrediction("a", 0.5), TokenPrediction("b", 0.25)]])) == "a 50.0%\nb 25.0%"
    assert str(ClassPrediction("a", 0.75, {"a": 0.75})) == "a (75.0%)"
    assert (
        str(MaskPredictions([[TokenPrediction("a", 0.5), TokenPrediction("b", 0.25)], [TokenPrediction("c", 1.0)]], 0))
        == "a 50.0%  b 25.0%\nc 100.0%"
    )
    assert str(TaggedText(["Ana", "is"], ["B-PER", "O"], [1.0, 1.0], [], 1)) == "Ana/B-PER is/O"


@pytest.fixture(scope="session")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Train a tiny language model."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text("".join(f"{line}.\n" for line in ENGLISH) * 40, "utf-8")
    fields = {**SMALL, "model.n_layers": 1, "data.train.document": "line"}
    return transom.train("text-bpe", folder / "run", fields, text=folder / "text.txt", progress=False)


def test_generated_tokens_have_probabilities(language_run: RunResult) -> None:
    generator = transom.load(language_run.folder, "fp32")
    assert repr(generator).startswith("<Generator: ") and "char tokens, context window 48" in repr(generator)
    options: dict[str, Any] = {"max_new_tokens": 12, "min_new_tokens": 8, "seed": 3}
    found = generator.continuations(["the ", "a dog and", ""], 2, **options)
    for continuations in found:
        for each in continuations:
            assert len(each.tokens) == len(each.probabilities) == each.n_tokens and "".join(each.tokens) == each.text
            assert all(0 < p <= 1 for p in each.probabilities)
    (alone,) = generator.continuations(["a dog and"], 1, **options)[0]
    assert alone == found[1][0] and np.allclose(alone.probabilities, found[1][0].probabilities, atol=1e-5)
    check_html(found._repr_html_())


def test_probabilities_are_the_models_own(language_run: RunResult) -> None:
    """The product of p(token | before) is the likelihood that scoring gives, the end token apart; whatever the temperature."""
    generator = transom.load(language_run.folder, "fp32")
    (found,) = generator.continuations([""], temperature=1.5, top_k=5, max_new_tokens=20, min_new_tokens=19)[0]
    scored = generator.score([found.text])[0]
    from transom.data.text.windows import scoring_batches
    from transom.data.tokenizer.special_tokens import EOS
    from transom.decoding.search.loop import log_probabilities

    ((batch, _, _),) = scoring_batches([[EOS, *generator.encode(found.text)]], 48, 0, 4096)
    with torch.no_grad():
        log_p = log_probabilities(generator.model(batch)).gather(-1, batch.labels[..., None])[0, :, 0]
    assert np.allclose(np.log(found.probabilities), log_p[: found.n_tokens], atol=1e-4)
    assert scored.n_tokens == found.n_tokens + 1


@pytest.fixture(scope="session")
def classifier_run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Train a tiny classifier of texts."""
    folder = tmp_path_factory.mktemp("classes")
    rows = [(text, language) for language, texts in (("en", ENGLISH), ("es", SPANISH)) for text in texts]
    for name in ("train.tsv", "valid.tsv"):
        (folder / name).write_text("".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")
    files = {"labeled_data": folder / "train.tsv", "valid_labeled_data": folder / "valid.tsv"}
    return transom.train("text-classes", folder / "run", {**SMALL, "model.n_layers": 1}, progress=False, **files)  # type: ignore[arg-type]


def test_predict_proba_and_embed(classifier_run: RunResult) -> None:
    classifier = transom.load(classifier_run.folder, "fp32")
    assert "2 classes (en, es)" in repr(classifier)
    texts = ["the cat", "dos gatos", "x" * 100]
    probabilities = classifier.predict_proba(texts)
    assert classifier.classes_.tolist() == ["en", "es"] and isinstance(probabilities, np.ndarray)
    assert probabilities.shape == (3, 2) and np.allclose(probabilities.sum(1), 1)
    for row, found in zip(probabilities, classifier.classify(texts), strict=True):
        assert found.probabilities == pytest.approx(dict(zip(["en", "es"], row, strict=True))) and found.label in ("en", "es")
    assert classifier.predict_proba([]).shape == (0, 2)
    vectors = classifier.embed(texts)
    assert isinstance(vectors, np.ndarray) and vectors.dtype == np.float32 and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    check_html(classifier.classify(texts)._repr_html_())


@pytest.mark.long
def test_an_editor_knows_the_types(tmp_path: Path) -> None:
    """Type-check a snippet as an editor does: names, arguments and results are known."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(
        "import transom\n"
        "reveal_type(transom.train('x', source='a', target='b', minutes=3))\n"
        "reveal_type(transom.train('x').load)\n"
        "reveal_type(transom.build)\n"
        "reveal_type(transom.load('x', kind=transom.Translator).translate(['a']))\n"
        "def f(classifier: transom.Classifier) -> None: reveal_type(classifier.predict_proba(['a']))\n"
        "transom.load('x', kind=transom.Generator).translate(['a'])\n"
        "transom.train('x', sauce='a')\n"
        "transom.tarin\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", str(snippet)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "transom.tasks.train.RunResult"' in done.stdout
    assert 'Revealed type is "list[str]"' in done.stdout and 'Revealed type is "numpy.ndarray[' in done.stdout
    assert '"Generator" has no attribute "translate"' in done.stdout
    assert 'Unexpected keyword argument "sauce"' in done.stdout


def test_the_kind_of_a_run_is_checked(trained: RunResult) -> None:
    assert isinstance(transom.load(trained.folder, kind=Translator), Translator)
    with pytest.raises(ConfigError, match="expected a run that transom generate can use, found one for transom translate"):
        transom.load(trained.folder, kind=transom.Generator)
    with pytest.raises(ConfigError, match="expected a run with a int, found a Translator; name another run or kind"):
        transom.load(trained.folder, kind=int)


def test_the_module_of_training_imports_no_torch() -> None:
    script = f"import sys; import {training.__name__}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
