"""Labeled texts: reading, errors, batches from any position, and the data report."""

import gzip
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from transom.config.data import LabeledFilesConfig, TokenizerConfig
from transom.data.labeled.class_labels import collect_classes, encode_labels
from transom.data.labeled.labeled_texts import (
    LabeledTextLoader,
    LabeledTexts,
    apply_word_dropout,
    labeled_text_batches,
    load_labeled_texts,
    read_labeled_texts,
)
from transom.data.pairs.pairs import Pairs
from transom.data.reports.labeled_texts import report_labeled_texts
from transom.data.sampler import MicroBatching
from transom.data.split import Splits
from transom.data.tokenizer.special_tokens import EOS
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError, TransomError
from transom.tasks.classification.schema import LabeledDataConfig

WORDS = ["good", "bad", "fine", "poor", "film", "plot"]
TEXTS = [" ".join(WORDS[(i * k) % 6] for k in range(1, 3 + i % 9)) for i in range(60)]
LABELS = [("neg", "pos")[i % 2] for i in range(60)]
DATA = LabeledTexts(TEXTS, LABELS, "here")
WORD_LEVEL = Tokenizer.train(TEXTS, TokenizerConfig(kind="whitespace", vocab_size=20))


def loader(data: Pairs = DATA, max_seq_len: int = 32, batch_tokens: int = 40, **more: Any) -> LabeledTextLoader:
    return LabeledTextLoader(data, WORD_LEVEL, ("neg", "pos"), max_seq_len=max_seq_len, batch_tokens=batch_tokens, seed=1, **more)


def test_three_formats_hold_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a film\tpos\nno film\t neg \n")
    (tmp_path / "a.csv").write_text('label,text\npos,a film\nneg,"no film"\n')
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"text": "a film", "label": "pos"}\n{"text": "no film", "label": "neg"}\n')
    for name in ("a.tsv", "a.csv", "a.jsonl.gz"):
        read = read_labeled_texts(LabeledFilesConfig(file=name), tmp_path)
        assert (read.source, read.target) == (["a film", "no film"], ["pos", "neg"])
    (tmp_path / "c.jsonl").write_text('{"text": "a film", "label": 1}\n{"text": "no film", "label": 0}\n')
    assert read_labeled_texts(LabeledFilesConfig(file="c.jsonl"), tmp_path).target == ["1", "0"]
    (tmp_path / "b.csv").write_text("stars,review\n5,a film\n")
    assert read_labeled_texts(LabeledFilesConfig(file="b.csv", text_field="review", label_field="stars"), tmp_path).target == ["5"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", "a film\tpos\n\tneg\n", "a.tsv:2: expected a text and its class, found no text"),
        ("a.tsv", "a film\tpos\nno film\t \n", "a.tsv:2: expected a text and its class, found no class"),
        ("a.tsv", "a film\n", "a.tsv:1: expected at least 2 columns"),
        ("a.csv", "words,label\n", "a.csv: expected at least one sample, found only a header"),
        ("a.jsonl", '{"text": "a", "label": 1.5}\n', "a.jsonl:1: expected text in the field 'label', found 1.5"),
        ("a.txt", "a\tb\n", "a.txt: expected a .tsv, .csv, .jsonl, .json or .parquet file"),
    ],
)
def test_bad_records(tmp_path: Path, name: str, content: str, expected: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TransomError) as caught:
        read_labeled_texts(LabeledFilesConfig(file=name), tmp_path)
    assert expected in str(caught.value)


def test_classes_are_those_of_training_in_order() -> None:
    assert collect_classes(DATA.target, DATA) == ("neg", "pos")
    assert collect_classes(DATA.target, DATA, ("pos", "neg", "none")) == ("pos", "neg", "none")
    with pytest.raises(DataError, match=r"here, line 2: expected one of the classes 'neg', found 'pos'"):
        collect_classes(DATA.target, DATA, ("neg",))
    numbers = [str(i) for i in range(30)]
    with pytest.raises(DataError, match="found 30 classes among 30 samples, such as '0' and '9'; choose the column"):
        collect_classes(numbers, DATA)
    assert len(collect_classes(numbers[:15] * 2, DATA)) == 15 and len(collect_classes(numbers[:10], DATA)) == 10
    with pytest.raises(DataError, match=r"expected 2 to 10,000 classes, found 1 \('pos'"):
        collect_classes(["pos"], Pairs(["a"], ["pos"], "here"))
    assert encode_labels(["pos", "neg"], ("neg", "pos"), DATA) == [1, 0]


def test_validation_is_split_off_by_hash_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"film {i}\t{i % 2}\n" for i in range(200)))
    splits = load_labeled_texts(LabeledDataConfig.model_validate({"train": {"file": "a.tsv"}}), tmp_path)
    assert not set(splits.train.source) & set(splits.valid.source) and 8 <= len(splits.valid) <= 35
    assert "held out" in splits.valid.name and splits.valid.target[0] == str(int(splits.valid.source[0].split()[1]) % 2)
    (tmp_path / "b.tsv").write_text("same\t0\nsame\t1\n")
    with pytest.raises(DataError, match="expected at least two different texts"):
        load_labeled_texts(LabeledDataConfig.model_validate({"train": {"file": "b.tsv"}}), tmp_path)


def test_languages_of_the_phrasebook_share_no_text() -> None:
    data = LabeledDataConfig.model_validate({"generate": {"kind": "phrasebook", "n_train": 300, "n_valid": 20, "n_test": 20}})
    splits = load_labeled_texts(data, Path())
    assert set(splits.train.target) == {"English", "Spanish"} and len(set(splits.train.source)) == len(splits.train)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_shows_each_text_once_with_its_class_and_any_position_goes_on(world_size: int) -> None:
    shards = [loader(micro_batching=MicroBatching(2, shard, world_size)) for shard in range(world_size)]
    seen: list[int] = []
    for batches in zip(*(each.batches_from(0) for each in shards), strict=True):
        for _, micro_batches in batches:
            for batch in micro_batches:
                seen += batch.sample_ids
                for row, label, sample in zip(batch.source.tokens.tolist(), batch.labels.tolist(), batch.sample_ids, strict=True):
                    assert row[0] == EOS and WORD_LEVEL.decode(row) == TEXTS[sample] and ("neg", "pos")[label] == LABELS[sample]
                assert batch.source.tokens.numel() <= 40 and batch.n_target_tokens == len(batch.sample_ids)
        if batches[0][0] == 60:
            break
    assert sorted(seen) == list(range(60))
    first = list(islice(shards[0].batches_from(0), 30))
    assert next(shards[0].batches_from(first[20][0]))[1][0].sample_ids == first[21][1][0].sample_ids


def test_what_is_too_long_is_cut_or_left_out_and_counted() -> None:
    cut, left = loader(max_seq_len=6), loader(max_seq_len=6, too_long="drop")
    longer = sum(len(text.split()) > 5 for text in TEXTS)
    assert (cut.n_too_long, cut.n_samples) == (longer, 60) and (left.n_too_long, left.n_samples) == (longer, 60 - longer)
    assert max(batch.source.tokens.shape[1] for _, micro_batches in islice(cut.batches_from(0), 40) for batch in micro_batches) == 6
    report = report_labeled_texts(Splits(DATA, DATA), ("neg", "pos"), WORD_LEVEL, cut)
    assert f"train: {longer} texts longer than the 6 tokens of the context window; they are truncated" in report.problems
    dropped = report_labeled_texts(Splits(DATA, DATA), ("neg", "pos"), WORD_LEVEL, left)
    assert f"train: {longer} texts longer than the 6 tokens of the context window; they are dropped" in dropped.problems
    for each in (report, dropped):
        assert f"valid: {longer} texts longer than the 6 tokens of the context window; they are truncated" in each.problems
    assert dropped.statistics["too_long"] == {"train": {"texts": longer, "dropped": longer}, "valid": {"texts": longer, "dropped": 0}}
    with pytest.raises(DataError, match="expected texts of at most 2 tokens, found none"):
        loader(max_seq_len=2, too_long="drop")
    with pytest.raises(
        DataError, match=r"line \d+: expected at most model.max_seq_len = 6 tokens, .* set data.too_long = 'truncate' or 'drop'"
    ):
        loader(max_seq_len=6, too_long="refuse")
    assert loader(max_seq_len=99, too_long="refuse").n_samples == 60
    with pytest.raises(ConfigError, match=r"training\.batch_tokens: expected at least 11"):
        loader(batch_tokens=10)


def is_part(short: list[str], whole: list[str]) -> bool:
    """Return True if the words of one are a subsequence of the other."""
    rest = iter(whole)
    return all(word in rest for word in short)


def test_word_dropout_leaves_tokens_out_in_each_epoch_anew() -> None:
    made, epochs = loader(word_dropout=0.3), [dict[int, str](), dict[int, str]()]
    for _, micro_batches in made.batches_from(0):
        for batch in micro_batches:
            for row, sample in zip(batch.source.tokens.tolist(), batch.sample_ids, strict=True):
                epochs[sample in epochs[0]][sample] = WORD_LEVEL.decode(row)
        if len(epochs[1]) == 60:
            break
    for texts in epochs:
        assert all(text and is_part(text.split(), TEXTS[sample].split()) for sample, text in texts.items())
    assert sum(epochs[0][i] != epochs[1][i] for i in range(60)) > 20, "drawn anew"
    position, micro_batches = next(loader(word_dropout=0.3).batches_from(0))
    again = next(made.batches_from(0))
    assert again[0] == position and torch.equal(again[1][0].source.tokens, micro_batches[0].source.tokens), "from the seed alone"


def test_word_dropout_has_its_probability() -> None:
    row = list(range(1000))
    kept = [len(apply_word_dropout(row, 0.2, (1, 2, sample))) for sample in range(100)]
    assert sum(kept) / 100_000 == pytest.approx(0.8, abs=0.005)  # four standard deviations
    assert apply_word_dropout(row, 0.0, (1, 2, 3)) is row and apply_word_dropout([5], 1 - 1e-12, (1, 2, 3)) == [5], (
        "one that would be empty stays"
    )


def test_batches_for_reading_hold_each_text_once() -> None:
    rows = WORD_LEVEL.encode_batch(TEXTS)
    batches = labeled_text_batches(rows, list(range(60)), 8, 40)
    assert sorted(sample for batch in batches for sample in batch.sample_ids) == list(range(60))
    for batch in batches:
        assert tuple(batch.labels.tolist()) == batch.sample_ids and batch.source.tokens.shape[1] <= 8


def test_the_report_names_what_to_look_at() -> None:
    train = LabeledTexts(["a film", "a film", "no film"], ["pos", "neg", "neg"], "train", [3, 5, 7])
    valid = LabeledTexts(["a film", "other film"], ["pos", "neg"], "valid")
    made = LabeledTextLoader(train, WORD_LEVEL, ("neg", "pos"), max_seq_len=9, batch_tokens=40, seed=1)
    report = report_labeled_texts(Splits(train, valid), ("neg", "pos"), WORD_LEVEL, made)
    problems = " | ".join(report.problems)
    assert "1 text with another class than an earlier equal text: lines 3 and 5" in problems
    assert "valid: 1 of 2 texts also in training" in problems and "fewer than 10 texts of 'neg', 'pos'" in problems
    assert report.statistics["classes"]["train"] == {"neg": 2, "pos": 1} and "classes: neg 66.7%, pos 33.3%" in "\n".join(report.lines())
