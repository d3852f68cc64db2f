"""Tagged sentences: files and their errors, entities, windows, batches, and tags of the phrasebook grammar."""

import gzip
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from transom.config.data import PhrasebookConfig, TokenizerConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.phrases import clock_time, date, quantity
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError
from transom.tasks.tagging.entities import OUTSIDE, Entity, complete_tags, entities_of, entity_scores, first_invalid, to_iob2
from transom.tasks.tagging.loader import TaggedLoader, inference_batches, split_sentences, window_labels
from transom.tasks.tagging.phrasebook import enumerate_choices, tagged_words
from transom.tasks.tagging.tagged_files import TaggedSentences, read_tagged, word_spans

SENTENCES = [["Ana", "Torres", "sees", "Luis", "."], ["it", "rains"], ["Madrid", "sleeps"]]
TAGS = [["B-PER", "I-PER", "O", "B-PER", "O"], ["O", "O"], ["B-LOC", "O"]]
TEXT = "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(ws, ts, strict=True)) for ws, ts in zip(SENTENCES, TAGS, strict=True)) + "\n"


def read(folder: Path, text: str | bytes, name: str = "a.conll", **columns: int) -> TaggedSentences:
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return read_tagged(folder / name, **columns)


def test_a_file_is_words_and_tags(tmp_path: Path) -> None:
    plain = read(tmp_path, TEXT)
    assert (plain.words, plain.tags, plain.lines) == (SENTENCES, TAGS, [1, 7, 10])
    assert read(tmp_path, gzip.compress(TEXT.encode()), "a.gz").words == SENTENCES
    documents = "-DOCSTART- -X- O\n\nAna NNP B-PER\nTorres NNP I-PER\n-DOCSTART- -X- O\nit PRP O\n\n\n"
    spaced = read(tmp_path, documents)
    assert (spaced.words, spaced.lines) == ([["Ana", "Torres"], ["it"]], [3, 6])
    assert read(tmp_path, documents, tag_column=1).tags == [["NNP", "NNP"], ["PRP"]]
    assert read(tmp_path, "-DOCSTART-\n\nAna\tB-PER\n").words == [["Ana"]], "whatever columns such a line has"
    assert read(tmp_path, "New York\tB-LOC\r\nis\tO\r\n").words == [["New York", "is"]], "tabs separate where there are some"
    assert plain.select([2, 0], "some").describe_sample(0) == "some:10" and plain.select([2], "some").tags == [["B-LOC", "O"]]


def test_iob1_is_read_as_iob2(tmp_path: Path) -> None:
    found = read(tmp_path, "Ana I-PER\nTorres I-PER\nLuis B-PER\nin O\nMadrid I-LOC\n\nit O\n")
    assert found.tags == [["B-PER", "I-PER", "B-PER", "O", "B-LOC"], ["O"]] and found.n_converted == [2, 0]
    assert found.select([1], "").n_converted == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected at least one line, found an empty file"),
        ("\n\n", "expected a word and its tag per line, found none"),
        ("-DOCSTART- O\n", "expected a word and its tag per line"),
        ("Ana\nLuis\n", "a.conll:1: expected at least 2 columns, of words and tags, separated by tabs or spaces, found 1"),
        ("Ana B-PER\n\nit PRP O\n", "a.conll:3: expected 2 columns, separated by spaces as in line 1, found 3; correct the line"),
        ("Ana\tB-PER\nit O\n", "a.conll:2: expected 2 columns, separated by tabs as in line 1, found 1; correct the line"),
        ("Ana\tB-PER\nit\t\n", "a.conll:2: expected a word and its tag, found no tag"),
        ("Ana\tB-PER\n\tO\n", "a.conll:2: expected a word and its tag, found no word"),
        ("Ana B-PER\nit PRON\n", "a.conll:2: expected O, B-LABEL or I-LABEL as elsewhere, found 'PRON'"),
        (
            "Ana S-PER\nin O\nNew B-LOC\nit O\n",
            "a.conll:4: expected complete entities (S- alone, or B- and later E-), found 'O' after 'B-LOC'",
        ),
        ("Ana S-PER\nNew B-LOC\n", "a.conll:2: expected complete entities (S- alone, or B- and later E-), found 'O' after 'B-LOC'"),
        (b"Ana B-PER\n\xe9t\xe9 O\n", "a.conll:2:1: expected UTF-8, found byte 0xe9"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, text)
    assert expected in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ana's half-past 3, no?", ["Ana's", "half-past", "3", ",", "no", "?"]),
        ("cafe\u0301s o\u0308ffnen", ["cafe\u0301s", "o\u0308ffnen"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा", "।"]),
        ("I \u2764\ufe0f it", ["I", "\u2764\ufe0f", "it"]),
        ("\u0301a", ["\u0301", "a"]),
    ],
)
def test_marks_belong_to_the_word_before_them(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in word_spans(text, "punctuation")] == words
    assert [text[start:end] for start, end in word_spans(text, "spaces")] == text.split()


@pytest.mark.parametrize(("word", "tag"), [(0, 0), (1, -1), (-2, 0)])
def test_words_and_tags_are_two_columns(tmp_path: Path, word: int, tag: int) -> None:
    with pytest.raises(DataError, match=rf"a\.conll:1: expected words and tags in two columns, found both in column {word}; set"):
        read(tmp_path, TEXT, word_column=word, tag_column=tag)


def test_a_tag_that_the_model_does_not_have_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.conll:10: expected one of the tags 'B-PER', 'I-PER', 'O', found 'B-LOC'"):
        read(tmp_path, TEXT).encode_labels(["B-PER", "I-PER", "O"])


def slowly(tags: Sequence[str]) -> set[Entity]:
    """Find entities by testing all spans of a sentence: one label, a valid start, and no possible continuation."""
    found = set[Entity]()
    for start in range(len(tags)):
        for end in range(start + 1, len(tags) + 1):
            before, part, after = [OUTSIDE, *tags, OUTSIDE][start], tags[start:end], [*tags, OUTSIDE][end]
            joins = [a != OUTSIDE and a[0] in "BI" and b[0] in "IE" and a[2:] == b[2:] for a, b in pairwise(part)]
            is_begun = not (before[0] in "BI" and part[0][0] in "IE" and before[2:] == part[0][2:])
            goes_on = part[-1][0] in "BI" and after[0] in "IE" and after[2:] == part[-1][2:]
            if OUTSIDE not in part and all(joins) and is_begun and not goes_on:
                found.add(Entity(part[0][2:], start, end))
    return found


def test_entities_and_f1_equal_a_slow_formula() -> None:
    choices = [OUTSIDE, OUTSIDE, *(f"{prefix}-{label}" for prefix in "BIES" for label in "xy")]
    drawn = torch.randint(len(choices), (400, 7), generator=torch.Generator().manual_seed(1)).tolist()
    sentences = [[choices[i] for i in row] for row in drawn]
    assert all(set(entities_of(tags)) == slowly(tags) for tags in sentences)
    known, found = sentences[::2], [a[:4] + b[4:] for a, b in zip(sentences[::2], sentences[1::2], strict=True)]
    whole, of_each = entity_scores(known, found)
    right = sum(len(slowly(a) & slowly(b)) for a, b in zip(known, found, strict=True))
    n_known, n_found = (sum(len(slowly(tags)) for tags in part) for part in (known, found))
    assert whole == pytest.approx((n_known, right / n_found, right / n_known, 2 * right / (n_known + n_found))) and right > 50
    assert sum(one.n for one in of_each.values()) == whole.n and set(of_each) == {"x", "y"}
    assert entity_scores([["O"]], [["O"]])[0] == (0, 0.0, 0.0, 0.0)
    iob = [[tag for tag in tags if tag[0] not in "ES"] for tags in sentences]
    assert all(entities_of(to_iob2(tags)) == entities_of(tags) and to_iob2(to_iob2(tags)) == to_iob2(tags) for tags in iob)
    assert first_invalid(["B-x", "I-y", "E-y"]) == 1 and first_invalid(["S-x", "B-x", "I-x", "E-x"]) is None
    assert complete_tags(["O", "S-x"], "iobes") == ("B-x", "E-x", "I-x", "O", "S-x") and complete_tags(["N", "V"], "plain") == ("N", "V")


@pytest.mark.parametrize("kind", ["bpe", "char", "whitespace"])
def test_a_word_is_read_as_within_a_text_and_counts_once(kind: str) -> None:
    tokenizer = Tokenizer.train(map(" ".join, SENTENCES), TokenizerConfig(kind=kind, vocab_size=300))  # type: ignore[arg-type]
    read = split_sentences([*SENTENCES, [], ["\N{NO-BREAK SPACE}"]], tokenizer, 100)
    assert [window.sample for window in read] == [0, 1, 2, 4] and all(len(window.tokens) >= len(window.first_tokens) for window in read)
    for window in read[:3]:
        text = " ".join(SENTENCES[window.sample])
        assert window.tokens[-len(tokenizer.encode(text)) :] == tokenizer.encode(text)
        starts = tokenizer.starts_word(window.tokens)
        assert window.first_tokens == [place for place, starting in enumerate(starts) if starting]


def test_long_sentences_are_cut_between_words() -> None:
    tokenizer = Tokenizer.train(map(" ".join, SENTENCES), TokenizerConfig(kind="char", vocab_size=60))
    read = split_sentences(SENTENCES, tokenizer, 8)
    assert [(window.sample, window.start, len(window.first_tokens)) for window in read] == [
        *((0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 3, 2)),
        *((1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1)),
    ]
    assert max(len(window.tokens) for window in split_sentences([["a" * 50, "b"]], tokenizer, 8)) == 8
    numbers = [[5, 6, 7, 8, 9], [0, 1], [2, 3]]
    assert [label for row in window_labels(read, numbers) for label in row] == [5, 6, 7, 8, 9, 0, 1, 2, 3]
    assert inference_batches([], None, 100) == []


def test_batches_have_a_label_at_the_first_token_of_each_word() -> None:
    tokenizer = Tokenizer.train(map(" ".join, SENTENCES), TokenizerConfig(kind="char", vocab_size=60))
    classes = ["B-LOC", "B-PER", "I-PER", "O"]
    loader = TaggedLoader(TaggedSentences(SENTENCES, TAGS, "here"), tokenizer, classes, max_seq_len=64, batch_tokens=64, seed=1)
    seen = dict[int, list[str]]()
    for _, (end, slices) in zip(range(3), loader.batches_from(0), strict=False):
        for batch in slices:
            assert batch.source.tokens[:, 0].eq(2).all() and batch.n_target_tokens == int(batch.loss_mask.sum())
            for row, sample in enumerate(batch.sample_ids):
                seen[sample] = [classes[label] for label in batch.labels[row][batch.loss_mask[row]].tolist()]
        if end == 3:
            break
    assert seen == dict(enumerate(TAGS)) and loader.describe_sample(1) == "here, sentence 2"
    with pytest.raises(ConfigError, match=r"training\.batch_tokens: expected at least 24, the tokens of the longest sentence, found 20"):
        TaggedLoader(TaggedSentences(SENTENCES, TAGS, "here"), tokenizer, classes, max_seq_len=64, batch_tokens=20, seed=1)
    blanked = TaggedLoader(
        TaggedSentences(SENTENCES, TAGS, "h"), tokenizer, classes, max_seq_len=64, batch_tokens=64, seed=1, blank_noising=0.5
    )
    (_, (one, *_)), (_, (other, *_)) = next(loader.batches_from(0)), next(blanked.batches_from(0))
    assert torch.equal(one.labels, other.labels) and not torch.equal(one.source.tokens, other.source.tokens)
    again = next(blanked.batches_from(0))[1][0]
    assert torch.equal(again.source.tokens, other.source.tokens), "which tokens are blanked hangs on seed, epoch and sample alone"


def test_the_grammar_tags_all_that_it_can_say() -> None:
    words = lexicon()
    for text, label in (
        *((f"it is {each.english}", "TIME") for each in enumerate_choices(clock_time)),
        *((f"today is {each.english}", "DATE") for each in enumerate_choices(lambda draw: date(draw, words))),
        *((f"I see {name.lemma}", "PERSON") for name in words.names),
    ):
        tags = tagged_words(text)[1]
        assert tags[2:] == [f"B-{label}", *[f"I-{label}"] * (len(tags) - 3)], text
    assert (
        len(set(enumerate_choices(clock_time))) == 48
        and len(set(enumerate_choices(lambda draw: date(draw, words)))) == 366
        and len(set(enumerate_choices(quantity))) > 90
    )
    pairs = dict(zip(*tagged_words("twenty-one birds sleep in the old castle on Mondays, Ana"), strict=True))
    assert (pairs["twenty-one"], pairs["castle"], pairs["Mondays"], pairs["Ana"]) == ("B-NUMBER", "B-PLACE", "B-DATE", "B-PERSON")
    train = generate_phrasebook(PhrasebookConfig(n_train=500, n_valid=10, n_test=10)).train.source
    assert all("".join(tagged_words(text)[0]) == text.replace(" ", "") for text in train), "no sign is lost"
