"""Every task with tokenizers of every kind: a run trains, loads and answers, with special tokens at other ids than transom's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.agreement.published_tokenizers import BUILDERS
from tests.tasks.test_instruction import instructions
from tests.tiers import tiers
from tests.training.conftest import MODEL, TRAINING, changed, sit
from transom.config.recipe import Recipe
from transom.data.tokenizer.special_tokens import EOS
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.translator import Translator
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.embedding.schema import EmbeddingRecipe
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.load import load
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.tagging.schema import TaggingRecipe
from transom.tasks.translation.schema import TranslationRecipe

TRAINED = {"byte-bpe": 270, "wordpiece": 60, "unigram": 45}
KINDS = [*TRAINED, *tiers(BUILDERS, long=["gpt2", "bert", "t5", "llama2"])]


def with_tokenizer(recipe: Recipe, kind: str, folder: Path) -> Any:
    """Return the recipe with a tokenizer that is trained, or that lies in a file."""
    raw = recipe.model_dump()
    if kind in TRAINED:
        raw["tokenizer"] |= {"kind": kind, "vocab_size": TRAINED[kind]}
    else:
        (folder / "published.json").write_text(BUILDERS[kind]().to_str())
        raw["tokenizer"] |= {"kind": "pretrained", "file": str(folder / "published.json")}
    return type(recipe).model_validate(raw)


def language(folder: Path) -> LanguageRecipe:
    (folder / "text.txt").write_text("\n".join(f"the red dog barks {i}" for i in range(60)))
    data = {"train": {"files": str(folder / "text.txt"), "document": "line"}}
    raw = {"data": data, "model": MODEL, "training": TRAINING | {"blank_noising": 0.1}, "decoding": {"max_new_tokens": 6}}
    return LanguageRecipe.model_validate(raw)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_language_model_generates(kind: str, tmp_path: Path) -> None:
    sit(with_tokenizer(language(tmp_path), kind, tmp_path), tmp_path / "run")
    generator = load(tmp_path / "run", "fp32")
    assert isinstance(generator, Generator)
    tokenizer, special = generator.tokenizer, generator.tokenizer.special_tokens
    for answers in generator.continuations(["the red", ""], 2):
        assert all(answer.finish_reason in ("end", "length") for answer in answers)
    (score,) = generator.score(["the red dog"])
    batch = torch.tensor([[special.document_start, *(row := tokenizer.encode("the red dog"))]])
    log_p = generator.model(batch).double().log_softmax(-1)[0, range(len(row) + 1), [*row, special.end]]
    assert score.log_p == pytest.approx(log_p.sum().item(), rel=1e-4) and score.n_tokens == len(row) + 1
    lines = transom.explain(generator, "the red dog").text()
    assert all(symbol in lines for symbol in tokenizer.symbols(row[:2]))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_model_fills(kind: str, masked: MaskedRecipe, tmp_path: Path) -> None:
    sit(with_tokenizer(masked, kind, tmp_path), tmp_path / "run")
    filler = load(tmp_path / "run")
    assert isinstance(filler, MaskFiller)
    tokenizer = filler.tokenizer
    inside = tokenizer.special_tokens.mask_token_id
    assert filler.model.config.mask_token_id == inside
    assert len(filler.model.embedding.tokens.weight) == tokenizer.vocab_size + (inside is None)
    batch, (place,) = filler.masked_batch("the red [MASK] barks")
    row = batch.source.tokens[0].tolist()
    template = tokenizer.special_tokens.template
    assert row[place] == tokenizer.mask_token_id and row[: len(template.prefix)] == [*template.prefix]
    assert row[len(row) - len(template.suffix) :] == [*template.suffix]
    (guesses,) = filler.fill(["the red [MASK] barks"])[0:1]
    assert len(guesses[0]) == 5 and sum(each.p for each in guesses[0]) <= 1 + 1e-6


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_translator_translates(kind: str, tmp_path: Path) -> None:
    for side, words in (("source", "red dog"), ("target", "perro rojo")):
        (tmp_path / side).write_text("\n".join(f"{words} {i}" for i in range(60)) + "\n")
    model = {key: value for key, value in MODEL.items() if key != "n_layers"} | {"n_encoder_layers": 1, "n_decoder_layers": 1}
    raw = {
        "data": {"train": {"source": str(tmp_path / "source"), "target": str(tmp_path / "target")}},
        "model": model,
        "training": TRAINING | {"validate_bleu": 2},
        "decoding": {"max_length": 8},
    }
    sit(with_tokenizer(TranslationRecipe.model_validate(raw), kind, tmp_path), tmp_path / "run")
    translator = load(tmp_path / "run", "fp32")
    assert isinstance(translator, Translator)
    special, tokenizer = translator.tokenizers.target.special_tokens, translator.tokenizers.target
    assert len(translator.translate(["red dog 1", "dog"], beam_size=1)) == len(translator.translate(["red dog 1", "dog"], beam_size=3)) == 2
    (score,) = translator.score(["red dog"], ["perro"])
    source, labels = (special.seq2seq.surround(tokenizer.encode(text)) for text in ("red dog", "perro"))
    inputs = torch.tensor([source]), None, torch.tensor([[special.decoder_start, *labels[:-1]]])
    log_p = translator.model(inputs[0], decoder_tokens=inputs[2]).double().log_softmax(-1)[0, range(len(labels)), labels]
    assert score.log_p == pytest.approx(log_p.sum().item(), rel=1e-4)
    assert labels[-1] == special.end
    aligned = translator.align("red dog", "perro rojo")
    assert len(aligned.weights) == len(aligned.target)
    transom.explain(translator, "red dog")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", ["classes", "tags", "pairs"])
def test_encoders_train_and_answer(task: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    recipe: ClassificationRecipe | TaggingRecipe | EmbeddingRecipe = request.getfixturevalue(task)
    sit(with_tokenizer(recipe, kind, tmp_path), tmp_path / "run")
    run = load(tmp_path / "run")
    if task == "classes":
        assert len(run.classify(["a blue thing", "a bird thing"])) == 2
    elif task == "tags":
        assert run.tag(["the red dog sees Ana"])[0].words == ["the", "red", "dog", "sees", "Ana"]
    else:
        assert run.embed(["1 dog", "2 cat"]).shape == (2, 16)
    batch, _ = run.text_batch(run.encode("a red dog"))
    assert batch.source.tokens[0].tolist() == run.tokenizer.special_tokens.text(run.encode("a red dog"))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_instructions_are_answered(kind: str, tmp_path: Path) -> None:
    sit(with_tokenizer(changed(instructions(tmp_path), max_steps=6), kind, tmp_path), tmp_path / "run")
    run = load(tmp_path / "run")
    special = run.tokenizer.special_tokens
    text = run._text("swap a b", run._prompts(["swap a b"], run.sampling, {})[0], 0)
    assert text.prompt == [special.document_start, *run.tokenizer.encode("swap a b"), special.answer_start]
    assert len(run.generate(["swap a b"])) == 1


def test_own_kinds_keep_their_ids(classes: ClassificationRecipe, tmp_path: Path) -> None:
    sit(classes, tmp_path / "run")
    value = json.loads((tmp_path / "run" / "tokenizer.json").read_text())
    assert value["format_version"] == 1 and set(value["source"]) == {"kind", "lowercase", "units"}
    assert load(tmp_path / "run").text_batch([7])[0].source.tokens.tolist() == [[EOS, 7]]
