"""Pairs of texts by an imported classifier against the transformers library: token ids, token types, truncation and logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import transom
from tests.agreement.published_tokenizers import corpus
from tests.exchange.published_folders import FOLDERS
from transom.data.labeled.labeled_texts import labeled_text_batches
from transom.data.labeled.text_pairs import encode_texts
from transom.decoding.predictors.classifier import Classifier
from transom.errors import ConfigError, DataError
from transom.exchange.import_folder import import_folder

LINES = corpus(40)
PAIRS = [*zip(LINES[:20], LINES[20:], strict=True), ("the cat", LINES[0] * 3), (LINES[1] * 3, "it isn't"), ("it " * 60, "it " * 60)]
NAMES = ("bert-classes", "roberta-classes", "distilbert-classes")
"""The first has two token types, the second uses only one, the third has none."""


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Any, Any]:
    """Return an imported classifier, and the library's tokenizer and model."""
    folder = tmp_path_factory.mktemp(request.param)
    (published,) = (each for each in FOLDERS if each.case == request.param)
    theirs = published.save(folder / "theirs")
    import_folder(theirs, folder / "run")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(theirs)
    return transom.load(folder / "run", kind=Classifier, precision="fp32"), transformers.AutoTokenizer.from_pretrained(theirs), model.eval()


def _ids_and_types(classifier: Classifier, max_seq_len: int) -> tuple[list[list[int]], list[list[int] | None]]:
    """Return the token ids and token types of each pair in a batch of its own."""
    rows, special = encode_texts(classifier.tokenizer, PAIRS), classifier.tokenizer.special_tokens
    n_types = classifier.model.config.n_token_types
    sources = [labeled_text_batches([row], [0], max_seq_len, 1, special, n_types)[0].source for row in rows]
    types = [None if each.token_types is None else each.token_types[0].tolist() for each in sources]
    return [each.tokens[0].tolist() for each in sources], types


@pytest.mark.parametrize("max_seq_len", [9, 12, 13, 30, 60])
def test_ids_types_and_truncation_are_theirs(both: tuple[Classifier, Any, Any], max_seq_len: int) -> None:
    classifier, tokenizer, _ = both
    firsts, seconds = map(list, zip(*PAIRS, strict=True))
    expected = tokenizer(firsts, seconds, truncation="longest_first", max_length=max_seq_len, return_token_type_ids=True)
    ids, types = _ids_and_types(classifier, max_seq_len)
    assert ids == expected["input_ids"] and max(map(len, ids)) == max_seq_len
    n_types = classifier.model.config.n_token_types
    assert types == [row if n_types > 1 and any(row) else None for row in expected["token_type_ids"]]
    assert (types[0] is not None) == (n_types > 1 and tokenizer.sep_token == "[SEP]")


@torch.no_grad()
def test_logits_and_probabilities_are_theirs_also_mixed_with_single_texts(both: tuple[Classifier, Any, Any]) -> None:
    classifier, tokenizer, model = both
    most = classifier.model.config.max_seq_len
    options = {"truncation": "longest_first", "max_length": most, "return_tensors": "pt"}
    options |= {"return_token_type_ids": tokenizer.sep_token == "[SEP]" and classifier.model.config.n_token_types > 0}
    expected = [model(**tokenizer(*pair, **options)).logits[0] for pair in [*PAIRS, *zip(LINES[:5])]]
    probabilities = torch.stack(expected).softmax(-1).double()
    texts = [*PAIRS, *LINES[:5]]
    assert (torch.from_numpy(classifier.predict_proba(texts)) - probabilities).abs().max() <= 1e-5
    found = classifier.classify(texts)
    assert [each.label for each in found] == [classifier.classes_[row.argmax()] for row in probabilities]
    assert found[len(PAIRS) - 1].n_dropped_tokens > 0 and found[0].n_dropped_tokens == 0
    rows, special = encode_texts(classifier.tokenizer, texts), classifier.tokenizer.special_tokens
    (batch,) = labeled_text_batches(rows, [0] * len(rows), most, 10**6, special, classifier.model.config.n_token_types)
    theirs = torch.stack([expected[i] for i in batch.sample_ids])
    assert (classifier.model(batch) - theirs).abs().max() <= 1e-5 * max(1, theirs.abs().max())


def test_mistakes(both: tuple[Classifier, Any, Any]) -> None:
    classifier = both[0]
    with pytest.raises(ConfigError, match="too_long: expected 'truncate' or 'refuse' for pairs of texts, found 'window'"):
        classifier.classify(PAIRS, too_long="window")
    with pytest.raises(
        DataError, match=r"text 2: expected at most \d+ tokens, found \d+; shorten the text, or set too_long to 'truncate'$"
    ):
        classifier.classify(["it", PAIRS[-1]], too_long="refuse")
    with pytest.raises(DataError, match=r"text 2: expected a text or a pair \(first, second\) of texts, found \('a', 'b', 'c'\)"):
        classifier.classify(["it", ("a", "b", "c")])  # type: ignore[list-item]


@pytest.mark.long
def test_an_import_is_fine_tuned_on_pairs(tmp_path: Path) -> None:
    (published,) = (each for each in FOLDERS if each.case == "bert-masked")
    import_folder(published.save(tmp_path / "theirs"), tmp_path / "run")
    lines = "".join(f"{first}\t{second}\t{number % 2}\n" for number, (first, second) in enumerate(PAIRS[:20]))
    (tmp_path / "pairs.tsv").write_text(lines, encoding="utf-8")
    data: dict[str, Any] = {"labeled_data": tmp_path / "pairs.tsv", "second_field": 1, "header": False}
    fields = {"training.max_steps": 2, "training.validate_every": 2, "training.batch_tokens": 256}
    transom.train("text-classes", tmp_path / "tuned", fields, init_from=tmp_path / "run", progress=False, **data)
    classifier = transom.load(tmp_path / "tuned", "fp32", kind=Classifier)
    types = classifier.model.embedding.token_types
    before = transom.load(tmp_path / "run", "fp32").model.embedding.token_types
    assert types is not None and (types.weight - before.weight).abs().amax(1).gt(0).tolist() == [True, True]
