"""Pairs of texts with a class: reading, errors, truncation, word dropout, validation texts, and the data report."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from transom.config.data import LabeledFilesConfig, TokenizerConfig
from transom.data.batch import MultiLabelTextBatch
from transom.data.labeled.labeled_texts import LabeledTextLoader, LabeledTexts, apply_word_dropout, load_labeled_texts, read_labeled_texts
from transom.data.labeled.text_pairs import TokenPair, n_tokens, surround, truncate
from transom.data.pairs.pairs import fingerprint
from transom.data.reports.labeled_texts import report_labeled_texts
from transom.data.split import Splits
from transom.data.tokenizer.special_tokens import SpecialTokens, Template
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, TransomError
from transom.tasks.classification.schema import LabeledDataConfig

BERT = SpecialTokens(0, template=Template((2,), (3,), (3,), 1))
FIRSTS, SECONDS = [f"a film {i % 20}" for i in range(60)], [f"the plot {i % 7}" for i in range(60)]
LABELS = [("no", "yes")[i % 2] for i in range(60)]
DATA = LabeledTexts(FIRSTS, LABELS, "here", second=SECONDS)
WORDS = Tokenizer.train([*FIRSTS, *SECONDS], TokenizerConfig(kind="whitespace", vocab_size=60))


def loader(data: LabeledTexts = DATA, max_seq_len: int = 32, **more: Any) -> LabeledTextLoader:
    return LabeledTextLoader(data, WORDS, ("no", "yes"), max_seq_len=max_seq_len, batch_tokens=80, seed=1, **more)


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("a.tsv", "a film\tthe plot\tyes\nno film\tno plot\t no \n", {"second_field": 1}),
        ("b.csv", 'hypothesis,id,label,premise\nthe plot,1,yes,a film\n"no plot",2,no,no film\n', {"second_field": "hypothesis"}),
        (
            "c.csv",
            "q1,q2,same\na film,the plot,yes\nno film,no plot,no\n",
            {"text_field": "q1", "second_field": "q2", "label_field": "same"},
        ),
        (
            "d.jsonl",
            '{"premise": "a film", "other": "the plot", "label": "yes"}\n{"premise": "no film", "other": "no plot", "label": "no"}\n',
            {"second_field": "other"},
        ),
    ],
)
def test_formats_hold_the_same(name: str, content: str, fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    read = read_labeled_texts(LabeledFilesConfig(file=name, **fields), tmp_path)
    assert (read.source, read.second, read.target) == (["a film", "no film"], ["the plot", "no plot"], ["yes", "no"])
    assert read.inputs == [("a film", "the plot"), ("no film", "no plot")] and read.select([1], "part").inputs == read.inputs[1:]


@pytest.mark.parametrize(
    ("name", "content", "field", "expected"),
    [
        ("a.tsv", "a film\tplot\tyes\nno film\t \tno\n", 1, "a.tsv:2: expected two texts and their class, found no second text; remove"),
        ("a.tsv", "a film\tplot\tyes\n\tplot\tno\n", 1, "a.tsv:2: expected two texts and their class, found no text; remove the line"),
        ("a.tsv", "a film\tplot\t\n", 1, "a.tsv:1: expected two texts and their class, found no class; remove the line"),
        ("a.tsv", "a film\tyes\n", 1, "a.tsv:1: expected at least 3 columns"),
        (
            "a.csv",
            "text,plot,label\na,b,yes\n",
            "pilot",
            "a.csv:1: expected the column 'pilot', found the columns text, plot, label; did you",
        ),
        (
            "a.jsonl",
            '{"text": "a", "b": "c", "label": "yes"}\n{"text": "a", "label": "no"}\n',
            "b",
            "a.jsonl:2: expected the field 'b', found fields 'text', 'label'; correct or remove the record",
        ),
    ],
)
def test_bad_records(name: str, content: str, field: str | int, expected: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TransomError) as caught:
        read_labeled_texts(LabeledFilesConfig(file=name, second_field=field), tmp_path)
    assert expected in str(caught.value)


def test_validation_pairs_are_split_off_by_both_texts_or_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"a film\tplot {i}\t{i % 2}\n" for i in range(200)))
    train = {"file": "a.tsv", "second_field": 1}
    splits = load_labeled_texts(LabeledDataConfig.model_validate({"train": train}), tmp_path)
    assert 8 <= len(splits.valid) <= 35 and not set(splits.train.keys) & set(splits.valid.keys)
    assert splits.valid.second is not None and splits.valid.target[0] == str(int(splits.valid.second[0].split()[1]) % 2)
    with pytest.raises(
        ConfigError, match=r"a\.tsv: expected pairs of texts as in .*a\.tsv, found one text per record; set its second_field"
    ):
        load_labeled_texts(LabeledDataConfig.model_validate({"train": train, "valid": {"file": "a.tsv", "label_field": 2}}), tmp_path)


def test_the_longer_text_is_truncated_first() -> None:
    for first, second, n, expected in [
        (9, 2, 6, (4, 2)),
        (2, 9, 7, (2, 5)),
        (9, 8, 5, (3, 2)),
        (8, 9, 5, (2, 3)),
        (4, 4, 3, (1, 2)),
        (2, 2, 9, (2, 2)),
    ]:
        row = TokenPair(range(first), range(10, 10 + second))
        cut = truncate(row, n + 3, BERT)
        assert isinstance(cut, TokenPair) and (len(cut.first), len(cut.second)) == expected
        assert [*cut] == [*range(expected[0]), *range(10, 10 + expected[1])] and n_tokens(cut, BERT) == sum(expected) + 3
    assert truncate(range(9), 6, BERT) == range(4)
    with pytest.raises(ConfigError, match=r"model\.max_seq_len: expected at least 5 for pairs of texts, found 4"):
        truncate(TokenPair([5, 6], [7]), 4, BERT)


def test_rows_have_types_only_where_the_model_has_several() -> None:
    rows = [TokenPair([7], [8, 9]), [5, 6]]
    typed, untyped, single = surround(rows, BERT, 2), surround(rows, BERT, 1), surround(rows[1:], BERT, 2)
    assert typed.tokens.tolist() == untyped.tokens.tolist() == [[2, 7, 3, 8, 9, 3], [2, 5, 6, 3, 0, 0]]
    assert typed.token_types is not None and typed.token_types.tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
    assert untyped.token_types is single.token_types is None and typed.lengths.tolist() == [6, 4]


def test_words_of_each_text_are_dropped() -> None:
    row = TokenPair(range(1000), range(1000))
    found = apply_word_dropout(row, 0.3, (1, 2, 3))
    assert isinstance(found, TokenPair) and found.first != found.second
    assert [600 < len(text) < 800 for text in (found.first, found.second)] == [True, True]
    assert found == apply_word_dropout(row, 0.3, (1, 2, 3)) and apply_word_dropout(row, 0.0, (1, 2, 3)) is row
    assert [*apply_word_dropout(TokenPair([5], [6]), 1 - 1e-12, (1, 2, 3))] == [5, 6], "no text loses its last word"


@pytest.mark.parametrize("word_dropout", [0.0, 0.4])
def test_an_epoch_shows_each_pair_once(word_dropout: float) -> None:
    seen = dict[int, str]()
    for end, (batch,) in loader(word_dropout=word_dropout).batches_from(0):
        seen |= zip(batch.sample_ids, map(WORDS.decode, batch.source.tokens.tolist()), strict=True)
        if end == 60:
            break
    whole = [" ".join(pair) for pair in zip(FIRSTS, SECONDS, strict=True)]
    assert len(seen) == 60 and ([seen[i] for i in range(60)] == whole) == (word_dropout == 0)


def test_pairs_may_have_any_number_of_labels() -> None:
    data = LabeledTexts(FIRSTS, [("", "no|yes")[i % 2] for i in range(60)], "here", multi_label=True, second=SECONDS)
    _, (batch,) = next(loader(data).batches_from(0))
    assert isinstance(batch, MultiLabelTextBatch) and batch.source.tokens.shape[1] == 8
    assert batch.labels.tolist() == [[i % 2] * 2 for i in batch.sample_ids]


def test_what_is_too_long_is_cut_or_left_out() -> None:
    data = LabeledTexts([*FIRSTS, "a film a film a film"], [*LABELS, "no"], "here", second=[*SECONDS, "the plot"])
    cut, left = loader(data, 9), loader(data, 9, too_long="drop")
    assert (cut.n_too_long, cut.n_samples, left.n_too_long, left.n_samples) == (1, 61, 1, 60)
    assert max(batch.source.tokens.shape[1] for _, (batch,) in islice(cut.batches_from(0), 40)) == 9
    with pytest.raises(TransomError, match=r"here, line 61: expected at most model.max_seq_len = 9 tokens, .* found 10"):
        loader(data, 9, too_long="refuse")


def test_the_report_and_the_hash_depend_on_both_texts() -> None:
    train = LabeledTexts(["a film", "a film", "a film"], ["yes", "no", "no"], "train", second=["the plot", "the plot", "plot"])
    valid = LabeledTexts(["a film", "a film"], ["yes", "no"], "valid", second=["plot", "film"])
    report = report_labeled_texts(Splits(train, valid), ("no", "yes"), WORDS, loader(train))
    problems = " | ".join(report.problems)
    assert (
        "1 text with another class than an earlier equal text: lines 1 and 2" in problems
        and "valid: 1 of 2 texts also in train" in problems
    )
    assert report.statistics["tokens"]["train"]["longest"] == 4 and report.statistics["unseen"]["valid"]["symbols"] == 0
    assert fingerprint(train) != fingerprint(LabeledTexts(train.source, train.target, "train", second=["plot"] * 3))
