"""Multilingual translation: language tags, metrics per language and overall, and what a resumed run may not change."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import changed, measured, sit
from transom.checkpoints.run_folder import RunFolder
from transom.data.pairs.datasets import load_multilingual_data
from transom.data.tokenizer.special_tokens import PAD, SOS
from transom.decoding.predictors import translator as searching
from transom.decoding.predictors.translator import Translator
from transom.decoding.search.loop import search
from transom.errors import ConfigError, DataError
from transom.tasks.load import load
from transom.tasks.task import build_training_setup
from transom.tasks.translation.schema import TranslationRecipe
from transom.training.translation_metrics import bleu, exact_match


@pytest.mark.long
def test_one_model_obeys_the_tags(languages: TranslationRecipe, tmp_path: Path) -> None:
    raw = changed(languages, max_steps=600, learning_rate=0.01, batch_tokens=512, average="none", precision="fp32").model_dump()
    raw["training"] |= {"label_smoothing": 0.0, "grad_accum_steps": 1, "validate_every": 600, "checkpoint_every": 600, "validate_bleu": 0}
    raw["training"]["schedule"]["warmup_steps"] = 30
    raw["model"] |= {"dropout": 0.0, "d_model": 32, "n_heads": 4}
    for language in raw["data"]["languages"]:
        language["generate"] |= {"n_train": 800, "n_test": 40, "n_symbols": 8, "min_length": 2}
    recipe = TranslationRecipe.model_validate(raw)
    sit(recipe, tmp_path / "run")
    translator = load(tmp_path / "run", "fp32", kind=Translator)
    test = load_multilingual_data(recipe.data, Path(), recipe.data.languages)["2-copy"].test
    assert test is not None
    copied, turned = (translator.translate(test.source, to=tag, beam_size=1) for tag in ("2-copy", "2-reverse"))
    assert exact_match(copied, test.source) > 0.9 and exact_match(turned, [text[::-1] for text in test.source]) > 0.9
    assert copied != turned, "of the same sentences"


def test_figures_are_of_each_language_and_of_all_sentences_together(languages: TranslationRecipe, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run") as folder:
        parts = build_training_setup(changed(languages, precision="fp32"), Path(), folder)
        task: Any = parts.task
        figures, samples = measured(parts)
    translator = Translator(parts.eval_model, task.tokenizers, parts.recipe.decoding)  # type: ignore[arg-type]
    total, n, translations, references = 0.0, 0, list[str](), list[str]()
    for to, pairs in task.valid.items():
        scores = translator.score(pairs.source, pairs.target, to=to)
        of_language, n_tokens = -sum(score.log_p for score in scores), sum(score.n_tokens for score in scores)
        assert figures[f"loss/{to}"] == pytest.approx(of_language / n_tokens, rel=1e-5)
        total, n = total + of_language, n + n_tokens
        found = translator.translate(pairs.source[:4], to=to)
        assert figures[f"bleu/{to}"] == pytest.approx(bleu(found, pairs.target[:4]).value)
        assert [sample["translation"] for sample in samples if sample["to"] == to] == found
        translations, references = [*translations, *found], [*references, *pairs.target[:4]]
    assert figures["loss"] == pytest.approx(total / n, rel=1e-5)
    assert figures["bleu"] == pytest.approx(bleu(translations, references).value)
    assert task.loader.samples_per_epoch == {"2-copy": 160, "2-reverse": 140}, "200 and 100, by fifth roots"
    report = task.report.to_json()
    assert report["pairs"]["2-reverse train"]["samples per epoch"] == 140 and {"2-copy valid", "2-reverse test"} <= report["pairs"].keys()
    assert task.report.lines()[0] == "2-copy train: 200 pairs (copy, train), 160 samples per epoch"
    assert task.describe_sample(203) == "2-reverse line 4"


def test_a_tag_takes_a_place_and_is_never_an_answer(languages: TranslationRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sit(changed(languages, max_steps=1), tmp_path / "run")
    translator, filters = load(tmp_path / "run", "fp32", kind=Translator), list[Any]()
    monkeypatch.setattr(searching, "search", lambda *given: filters.append(given[-1].logits_processors) or search(*given))  # type: ignore[func-returns-value]
    fits, long = (" ".join("ab"[i % 2] for i in range(n)) for n in (14, 15))  # of 16 tokens the tag and the end symbol take two
    translator.translate([fits], to="2-copy", too_long="refuse")
    assert filters[0][0].tokens.tolist() == [PAD, SOS, *translator.tokenizers.target.tag_tokens]
    with pytest.raises(DataError, match=r"at most model\.max_seq_len = 16 tokens, special tokens included, found 17"):
        translator.translate([long], to="2-copy", too_long="refuse")
    prefix = translator.tokenizers.source.language_prefix("2-reverse")
    pieces = translator._pieces([long, " "], prefix, "split", "text")
    assert [len(of_text) for of_text in pieces] == [2, 0] and all(piece[:1] == prefix for piece in pieces[0])
    assert [len(found) for found in translator.n_best([long, ""], 1, to="2-reverse")] == [1, 1]


def other_tags(languages: TranslationRecipe, *tags: str) -> TranslationRecipe:
    raw = changed(languages, max_steps=4).model_dump()
    raw["data"]["languages"] = [language | {"tag": tag} for language, tag in zip(raw["data"]["languages"], tags, strict=True)]
    return TranslationRecipe.model_validate(raw)


def test_a_resumed_run_keeps_its_languages(languages: TranslationRecipe, tmp_path: Path) -> None:
    sit(changed(languages, max_steps=3), tmp_path / "run")
    with pytest.raises(DataError, match="restore the files, or start a new run with another --out"):
        sit(other_tags(languages, "2-reverse", "2-copy"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"expected tags among 2-copy, 2-reverse, .* found 2-copy, sort; change data.languages"):
        sit(other_tags(languages, "2-copy", "sort"), tmp_path / "run")
    raw = changed(languages, max_steps=4).model_dump()
    raw["data"]["sampling_temperature"] = 1.0
    with pytest.raises(ConfigError, match=r"started with data\.sampling_temperature = 5\.0, found 1\.0"):
        sit(TranslationRecipe.model_validate(raw), tmp_path / "run")
    assert sit(changed(languages, max_steps=4), tmp_path / "run").step == 4


def test_fine_tuning_knows_the_languages_of_the_other_run_only(languages: TranslationRecipe, tmp_path: Path) -> None:
    sit(changed(languages, max_steps=3), tmp_path / "run")
    raw = changed(languages, max_steps=3, init_from=str(tmp_path / "run")).model_dump()
    both = raw["data"]["languages"]
    raw["data"]["languages"] = both[1:]
    sit(TranslationRecipe.model_validate(raw), tmp_path / "tuned")
    assert load(tmp_path / "tuned", kind=Translator).tokenizers.source.tags == ("2-copy", "2-reverse"), "its symbols are still there"
    raw["data"] |= {"languages": [], "generate": both[0]["generate"]}
    with pytest.raises(ConfigError, match=r"expected tags among 2-copy, 2-reverse, .* found none"):
        sit(TranslationRecipe.model_validate(raw), tmp_path / "untagged")
