"""Translation, n-best lists, scoring and loading, with a small character model with random weights."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.models import LETTERS, Uncached, letter_tokenizers, tiny_model
from tests.decoding.tables import EOS
from transom.checkpoints.run_files import CONFIG, RECIPE, TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.decoding import BeamSearchConfig
from transom.config.recipe import dump_recipe
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.inference import eval_mode, ignore_progress
from transom.decoding.predictors.likelihood import PairScore, perplexity
from transom.decoding.predictors.translator import Translator, replace_line_breaks
from transom.errors import CheckpointError, ConfigError, DataError
from transom.models.seq2seq import Seq2SeqTransformer
from transom.tasks.load import load
from transom.tasks.translation.schema import TranslationRecipe

SETTINGS = BeamSearchConfig(beam_size=3, max_length=8)


def translator(dtype: torch.dtype = torch.float64, letters: str = LETTERS, max_seq_len: int = 24, **fields: object) -> Translator:
    tokenizers = letter_tokenizers(letters)
    model = tiny_model(tokenizers.source.vocab_size, dtype=dtype, max_seq_len=max_seq_len, **fields)
    return Translator(model, tokenizers, SETTINGS)


@settings(max_examples=10)
@given(st.lists(st.text("abcd e.!\n", max_size=40), max_size=8))
def test_one_line_out_for_each_in(texts: list[str]) -> None:
    found = translator().translate(texts, beam_size=1)
    assert len(found) == len(texts)
    assert all("\n" not in line for line in found)
    assert all(line == "" for line, text in zip(found, texts, strict=True) if not text.strip())


def test_a_line_break_in_the_output_becomes_a_space() -> None:
    t = translator()
    t.model.unembedding.weight.data[t.tokenizers.target.encode("\n")[0]] *= 4
    [[raw]] = t._search([t.tokenizers.source.encode("abc")], t.decoding, 1)
    assert "\n" in t.tokenizers.target.decode(raw.tokens), "the model writes no line break: the test shows nothing"
    assert "\n" not in t._translations([raw])[0].text


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\r\nb", "a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "a\u2029b"])
def test_no_kind_of_line_break_survives(text: str) -> None:
    assert replace_line_breaks(text) == "a b"


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("batch_tokens", [9, 1024])
def test_order_and_batching_change_nothing(beam_size: int, batch_tokens: int) -> None:
    t, texts = translator(), ["ab", "", "abcdefgh", "h", "cd ab"]
    alone = [t.translate([text], beam_size=beam_size)[0] for text in texts]
    assert t.translate(texts[::-1], beam_size=beam_size, batch_tokens=batch_tokens) == alone[::-1]
    assert len(set(alone)) == 5, "the model answers everything alike: the test shows little"


def test_options_override_the_recipe_and_none_keeps_it() -> None:
    t = translator()
    assert t.translate(["abc"], beam_size=None, max_length=None) == t.translate(["abc"])
    for [best] in t.n_best(["abc", "h"], 1, min_length=5, max_length=6):
        assert len(t.tokenizers.target.encode(best.text)) <= 5
    exact = t._settings(1, {"min_length": 5, "max_length": 6})
    assert [len(h.tokens) for [h] in t._search_all([[5, 6], [7]], exact, 1, 100, ignore_progress)] == [5, 5]
    assert t.n_best(["abc"], 1, length_penalty=0.0)[0][0].score == t.n_best(["abc"], 1, length_penalty=0.0)[0][0].log_p


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "decoding: beam_size: expected .*1, found 0"),
        ({"length_penalty": -1.0}, "decoding: length_penalty: expected .*0, found -1.0"),
        ({"beam_size": 1}, "expected n_best from 1 to beam_size = 1, found 2; raise beam_size or lower n_best"),
        ({"min_length": 12}, "expected decoding.min_length below decoding.max_length, found 12 and 8"),
        ({"max_length": 100, "min_length": 30}, "expected min_length below 24"),
        ({"batch_tokens": 0}, "batch_tokens: expected at least 1, found 0"),
        ({"too_long": "cut"}, "too_long: expected 'split' or 'refuse', found 'cut'"),
    ],
)
def test_options_without_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        translator().n_best(["a"], 2, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_n_best_comes_with_true_scores_best_first() -> None:
    t = translator()
    texts = ["abc", "dead beef"]
    for text, found in zip(texts, t.n_best(texts, 3), strict=True):
        assert [x.score for x in found] == sorted((x.score for x in found), reverse=True)
        assert len(found) == 3
        hypotheses = t._search([t.tokenizers.source.encode(text)], t.decoding, 3)[0]
        for translation, h in zip(found, hypotheses, strict=True):
            assert translation.text == replace_line_breaks(t.tokenizers.target.decode(h.tokens))
            assert translation.log_p == pytest.approx(log_p_of(t.model, (*t.tokenizers.source.encode(text), EOS), h.tokens), abs=1e-9)
            assert translation.score == pytest.approx(translation.log_p / ((6 + len(h.tokens)) / 6) ** 0.6)


def log_p_of(model: Seq2SeqTransformer, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    slow = Uncached(model)
    return sum(slow.log_p(source, target[:i])[symbol] for i, symbol in enumerate((*target, EOS)))


def test_a_long_text_is_split_at_sentence_ends_and_rejoined() -> None:
    t = translator()
    parts = ["abc def gab.", "hhh!", "de fa be gab."]
    [whole] = t.n_best([" ".join(parts)], 2)
    pieces = t.n_best(parts, 2)
    assert whole[0].text == " ".join(piece[0].text for piece in pieces)
    assert whole[1].text == " ".join(piece[1].text for piece in pieces)
    assert whole[0].log_p == pytest.approx(sum(piece[0].log_p for piece in pieces))
    assert whole[0].pieces == len(pieces) > 1 and {piece[0].pieces for piece in pieces} == {1}


def test_a_long_text_is_refused_when_asked() -> None:
    t = translator()
    fits, too_long = "a" * 23, "a" * 24
    t.translate([fits], too_long="refuse")
    with pytest.raises(DataError, match=r"^news\.en:3: expected at most model\.max_seq_len = 24 tokens, .* found 25; shorten the text"):
        t.translate([fits, "", too_long], too_long="refuse", name="news.en")


def test_one_text_alone_is_refused() -> None:
    with pytest.raises(DataError, match="expected a list of texts, found one text"):
        translator().translate("abc")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_broken_model_still_gives_a_line_for_each(beam_size: int) -> None:
    t = translator()
    t.model.unembedding.weight.data.fill_(math.nan)
    assert len(t.translate(["abc", "", "h"], beam_size=beam_size)) == 3


def test_progress_is_told_and_ends_at_all() -> None:
    told = []
    translator().translate(["a", "bb", "", "ccc"], batch_tokens=4, notify=lambda done, all_: told.append((done, all_)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    told.clear()
    translator().score(["a", "bb", ""], ["c", "", "dd"], batch_tokens=4, notify=lambda done, all_: told.append((done, all_)))
    assert len(told) > 1 and told[-1] == (3, 3) and told == sorted(told)


def test_a_model_in_training_is_read_without_dropout_and_goes_on_training() -> None:
    t = translator(dropout=0.5)
    expected = t.translate(["abc"]), t.score(["abc"], ["de"])
    t.model.train()
    assert (t.translate(["abc"]), t.score(["abc"], ["de"])) == expected
    assert t.model.training
    with pytest.raises(KeyError), eval_mode(t.model):
        raise KeyError
    assert t.model.training


def test_scores_are_the_sum_over_target_symbols_in_the_pairs_order() -> None:
    t = translator()
    sources, targets = ["abc", "h", "", "dead", "ab"], ["de", "", "f", "abcdefgh", "h"]
    found = t.score(sources, targets, batch_tokens=12)
    for source, target, score in zip(sources, targets, found, strict=True):
        tokens = tuple(t.tokenizers.target.encode(target))
        assert score.n_tokens == len(tokens) + 1
        assert score.log_p == pytest.approx(log_p_of(t.model, (*t.tokenizers.source.encode(source), EOS), tokens), abs=1e-9)
    assert t.score([], []) == []


def test_all_short_targets_together_are_less_than_certain() -> None:
    t = translator(letters="ab", max_seq_len=6)
    targets = ["", "a", "b", "aa", "ab", "ba", "bb"]
    total = sum(math.exp(score.log_p) for score in t.score(["ab"] * len(targets), targets))
    assert 0 < total < 1


def test_scoring_refuses_unequal_and_too_long_pairs() -> None:
    with pytest.raises(DataError, match="expected as many targets as sources, found 1 targets and 2 sources"):
        translator().score(["a", "b"], ["a"])
    with pytest.raises(DataError, match=r"dev: expected at most model\.max_seq_len = 24 tokens .* found 25 in line 2"):
        translator().score(["a", "b"], ["a", "b" * 24], name="dev")


def test_perplexity_is_of_symbols_not_of_sentences() -> None:
    assert perplexity([PairScore(-2.0, 1), PairScore(-4.0, 5)]) == pytest.approx(math.e)
    with pytest.raises(DataError, match="found none"):
        perplexity([])


def test_bfloat16_translates_and_scores_close_to_float32() -> None:
    fp32, bf16 = translator(torch.float32), translator(torch.float32)
    bf16.model.to(torch.bfloat16)
    ours, theirs = bf16.score(["abc", "h"], ["de", "fa"]), fp32.score(["abc", "h"], ["de", "fa"])
    assert [x.log_p for x in ours] == pytest.approx([x.log_p for x in theirs], abs=0.5)
    assert [x.log_p for x in ours] != [x.log_p for x in theirs]
    assert len(bf16.translate(["abc", "", "h"])) == 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    t = translator(torch.float32)
    with RunFolder.create(tmp_path / "run") as run:
        recipe = TranslationRecipe.model_validate({"data": {"generate": "copy"}, "decoding": {"beam_size": 2, "max_length": 9}})
        run.write(RECIPE, dump_recipe(recipe).encode())
        run.write_config(t.model.config, "0" * 32)
        run.write(TOKENIZER, t.tokenizers.to_bytes())
        run.write_tensors("model.safetensors", t.model.state_dict(), step=1)
    return tmp_path / "run"


def test_a_run_folder_loads_as_it_was_and_leaves_random_numbers_alone(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    loaded = load(folder, precision="fp32")
    assert torch.equal(torch.rand(2), expected)
    assert loaded.decoding == BeamSearchConfig(beam_size=2, max_length=9)
    assert loaded.precision is not None and loaded.precision.dtype == torch.float32
    original = translator(torch.float32)
    assert loaded.translate(["abc", "h d"], max_length=8, beam_size=3) == original.translate(["abc", "h d"])
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert load(str(folder), precision="bf16").model.unembedding.weight.dtype == torch.bfloat16


def test_loading_needs_no_recipe(folder: Path) -> None:
    (folder / RECIPE).unlink()
    assert load(folder, precision="fp32").decoding == BeamSearchConfig()
    for lost in (RECIPE, "nowhere"):
        (folder / RECIPE).unlink(missing_ok=True)
        (folder / RECIPE).symlink_to(lost)
        with pytest.raises(ConfigError, match=r"recipe\.toml: cannot read the file"):
            load(folder, precision="fp32")


@pytest.mark.parametrize("name", [CONFIG, TOKENIZER, "model.safetensors"])
def test_a_missing_part_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name) as error:
        load(folder, precision="fp32")
    assert "\n" not in str(error.value)


def test_the_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    other: Tokenizers = letter_tokenizers("abcdefg")
    (folder / TOKENIZER).write_bytes(other.to_bytes())
    with pytest.raises(CheckpointError, match=r"expected source_vocab_size = 17 as in config\.json, found 11"):
        load(folder, precision="fp32")
