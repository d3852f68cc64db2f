"""Texts with any number of labels: reading, what is refused as ambiguous, batches, the data report and the baseline."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, log_loss

from transom.config.data import LabeledFilesConfig, TokenizerConfig
from transom.data.batch import MultiLabelTextBatch
from transom.data.labeled.class_labels import encode_label_sets, split_labels
from transom.data.labeled.labeled_texts import LabeledTextLoader, LabeledTexts, labeled_text_batches, load_labeled_texts, read_labeled_texts
from transom.data.reports.baseline import label_baseline
from transom.data.reports.labeled_texts import report_labeled_texts
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import AmbiguousLabelsError, ConfigError, DataError
from transom.tasks.classification.schema import LabeledDataConfig

CLASSES = ("a", "b", "c")
LABELS = [("a", "b|c", "", "a|b|c")[i % 4] for i in range(40)]
TEXTS = LabeledTexts([f"word {i % 3} of {i}" for i in range(40)], LABELS, "here", multi_label=True)
WORDS = Tokenizer.train(TEXTS.source, TokenizerConfig(kind="whitespace", vocab_size=60))


def read(path: Path, content: str, multi_label: bool | None = None) -> LabeledTexts:
    path.write_text(content)
    return read_labeled_texts(LabeledFilesConfig(file=path.name), path.parent, multi_label)


def test_all_formats_hold_the_same(tmp_path: Path) -> None:
    expected = ["a|b", "", "b"]
    tables = {
        "a.tsv": "x y\tb | a|b\nz\t\nw\tb\n",
        "a.csv": "label,text\n b|a,x y\n,z\nb,w\n",
        "a.jsonl": '{"text": "x y", "label": ["b", "a"]}\n{"text": "z", "label": []}\n{"text": "w", "label": "b"}\n',
        "a.json": json.dumps([{"text": "x y", "labels": "b|a"}, {"text": "z", "labels": ""}, {"text": "w", "labels": "b"}]),
    }
    for name, content in tables.items():
        found = read(tmp_path / name, content, multi_label=True)
        assert found.multi_label and (found.source, found.target) == (["x y", "z", "w"], expected), name


def test_arrays_are_several_labels(tmp_path: Path) -> None:
    found = read(tmp_path / "a.jsonl", '{"text": "x", "label": [2, "a"]}\n{"text": "y", "label": ["a"]}\n')
    assert found.multi_label and found.target == ["2|a", "a"] and "any number of labels" in found.notes[-1]
    with pytest.raises(DataError, match=r"a\.jsonl:1: expected text in the field 'label', found \[2, \"a\"\]"):
        read_labeled_texts(LabeledFilesConfig(file="a.jsonl"), tmp_path, multi_label=False)
    with pytest.raises(DataError, match=r"expected labels without \| in the field 'label', found 'a\|b'"):
        read(tmp_path / "b.jsonl", '{"text": "x", "label": ["a|b", "a"]}\n')
    with pytest.raises(DataError, match=r"expected text in the field 0, found \[\"a\"\]"):
        read(tmp_path / "c.jsonl", '{"text": "x", "label": [["a"]]}\n')


def test_a_separator_is_ambiguous(tmp_path: Path) -> None:
    content = "x\tdrama\ny\tdrama|sci-fi\nz\tcomedy\nw\tdrama|comedy\n"
    with pytest.raises(AmbiguousLabelsError, match=r"found 'drama\|sci-fi' .* 50\.0% of the labels, 2 different ones of 3 parts") as caught:
        read(tmp_path / "a.tsv", content)
    assert "use --multi-label if" in str(caught.value) and "--no-multi-label if" in str(caught.value)
    assert "2 are also labels on their own" in caught.value.question and caught.value.field == "multi_label"
    assert read(tmp_path / "a.tsv", content, multi_label=False).target == ["drama", "drama|sci-fi", "comedy", "drama|comedy"]
    assert read(tmp_path / "a.tsv", content, multi_label=True).target == ["drama", "drama|sci-fi", "comedy", "comedy|drama"]


def test_a_missing_class_is_refused_but_no_label_is_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.tsv:2: expected a text and its class, found no class"):
        read(tmp_path / "a.tsv", "x\ta\ny\t\n")
    with pytest.raises(DataError, match=r"a\.tsv:2: expected a text and its class, found no text"):
        read(tmp_path / "a.tsv", "x\ta|b\n \ta\n", multi_label=True)


def test_all_files_have_several_labels_or_none_has(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "x", "label": ["a"]}\n{"text": "y", "label": ["b", "a"]}\n')
    (tmp_path / "valid.tsv").write_text("z\ta\n")
    data = LabeledDataConfig.model_validate({"train": {"file": "train.jsonl"}, "valid": {"file": "valid.tsv"}})
    with pytest.raises(ConfigError, match=r"valid\.tsv: expected arrays of labels as in .*train\.jsonl, .* use --multi-label"):
        load_labeled_texts(data, tmp_path)
    assert load_labeled_texts(data, tmp_path, multi_label=True).valid.target == ["a"]
    with pytest.raises(ValueError, match=r"data\.multi_label: expected false with data\.generate"):
        LabeledDataConfig.model_validate({"generate": "phrasebook", "multi_label": True})


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sets(st.sampled_from(["a", "b c", "ü", "d"])), min_size=1, max_size=12), st.integers(0, 1000))
def test_labels_are_read_whatever_their_order_and_spaces(sets: list[set[str]], seed: int) -> None:
    draw, classes = np.random.default_rng(seed), ("a", "b c", "d", "ü")
    written = [" | ".join([*draw.permutation(sorted(each)), *list(each)[:1]]) for each in sets]
    assert [set(split_labels(joined)) for joined in written] == sets
    encoded = encode_label_sets(written, classes, TEXTS)
    assert [{classes[k] for k in np.flatnonzero(row)} for row in encoded] == sets


def test_an_unknown_label_is_refused() -> None:
    with pytest.raises(DataError, match="here, line 2: expected one of the classes 'a', 'b', 'c', found 'd'"):
        encode_label_sets(["a", "b|d"], CLASSES, TEXTS)


def test_batches_hold_the_labels_of_their_texts() -> None:
    sets = encode_label_sets(TEXTS.target, CLASSES, TEXTS)
    loader = LabeledTextLoader(TEXTS, WORDS, CLASSES, max_seq_len=8, batch_tokens=40, seed=1)
    first = [(end, slices) for end, slices in islice(loader.batches_from(0), 12)]
    later = [slices for _, slices in islice(loader.batches_from(first[4][0]), 3)]
    for (_, slices), again in zip(first[5:8], later, strict=True):
        for batch, same in zip(slices, again, strict=True):
            assert torch.equal(batch.labels, same.labels) and batch.sample_ids == same.sample_ids
    for batch in [batch for _, slices in first for batch in slices] + labeled_text_batches(WORDS.encode_batch(TEXTS.source), sets, 8, 40):
        assert isinstance(batch, MultiLabelTextBatch) and batch.n_target_tokens == len(batch.sample_ids) == len(batch.loss_mask)
        assert batch.labels.tolist() == sets[list(batch.sample_ids)].tolist()


def test_the_report_counts_labels_per_text() -> None:
    loader = LabeledTextLoader(TEXTS, WORDS, CLASSES, max_seq_len=8, batch_tokens=40, seed=1)
    report = report_labeled_texts(Splits(TEXTS, TEXTS), CLASSES, WORDS, loader)
    assert report.statistics["classes"]["train"] == {"a": 20, "b": 20, "c": 20}
    assert report.statistics["labels_per_text"]["train"] == {"mean": 1.5, "max": 3, "none": 10, "several": 20}
    assert any("a 50.0%, b 50.0%, c 50.0%" in line for line in report.summary_lines)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(1, 20), st.integers(2, 5), st.integers(0, 1000))
def test_the_baseline_answers_the_frequencies(n_train: int, n_valid: int, n_labels: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rates = draw.random(n_labels)
    train, valid = ((draw.random((n, n_labels)) < rates).astype(np.uint8) for n in (n_train, n_valid))
    loss, f1 = label_baseline(train, valid, [f"label {k}" for k in range(n_labels)])
    p = np.clip(train.mean(0), 1 / n_train, 1 - 1 / n_train)
    expected = sum(log_loss(valid[:, k], np.full(n_valid, p[k]), labels=[0, 1]) for k in range(n_labels))
    assert loss.value == pytest.approx(expected)
    scores = []
    for k in range(1, n_labels + 1):  # always the k most frequent labels
        answer = np.zeros(n_labels, int)
        answer[np.argsort(-train.sum(0, dtype=int), kind="stable")[:k]] = 1
        answers = [np.tile(answer, (n, 1)) for n in (n_train, n_valid)]
        scores.append(tuple(f1_score(of, to, average="micro", zero_division=0) for of, to in zip((train, valid), answers, strict=True)))
    best = max(of_train for of_train, _ in scores)
    assert any(f1.value == pytest.approx(100 * of_valid) for of_train, of_valid in scores if of_train == pytest.approx(best))
