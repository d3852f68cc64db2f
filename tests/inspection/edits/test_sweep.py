"""A batched sweep gives the results of single edits."""

from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.decoding.test_translator import translator
from tests.inspection.edits.by_hand import MODELS, STACKS, build
from tests.inspection.edits.test_scope import generator
from tests.tiers import every
from transom.config.data import TokenizerConfig
from transom.data.tokenizer.special_tokens import EOS
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.embedder import Embedder
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.multi_label import MultiLabelClassifier
from transom.errors import ConfigError
from transom.inspection.edits.answers import ask
from transom.inspection.edits.schemas import KnockOutKey, Patch
from transom.inspection.edits.sweep import last_answer, repeat_batch, sweep
from transom.models.base import Network


def one_row(name: str) -> tuple[Network, Any, Any]:
    """Build a model and two inputs of one row."""
    model, batch = build(name)
    if name == "vit":
        return model, model.as_batch(batch.pixels[:1]), model.as_batch(batch.pixels[1:])
    options = [{"decoder_tokens": batch.decoder_input.tokens[i : i + 1]} if name == "translator" else {} for i in range(2)]
    first, second = (model.as_batch(batch.source.tokens[i : i + 1], **options[i]) for i in range(2))
    return model, first, second


@pytest.mark.parametrize("name", every(2, MODELS))
@pytest.mark.parametrize(
    ("over", "options", "n"),
    [
        ("heads", {}, 12),
        ("heads", {"value": "mean"}, 12),
        ("heads", {"value": "resample", "texts": ["other"]}, 12),
        ("neurons", {"blocks": [1]}, 8),
        ("neurons", {"value": "mean", "texts": ["other"]}, 16),
        ("positions", {"source": "other"}, None),
        ("positions", {"source": "other", "site": "resid_mid", "blocks": [0]}, None),
        ("keys", {}, None),
    ],
    ids=lambda each: "-".join(map(str, each.values())) if isinstance(each, dict) else str(each),
)
@torch.no_grad()
def test_rows_are_single_edits(name: str, over: Any, options: dict[str, Any], n: int | None) -> None:
    model, batch, other = one_row(name)
    stack: dict[str, Any] = {"stack": STACKS[name]} if name == "translator" else {}
    done = list[tuple[int, int]]()
    inputs = {"other": other}
    found = sweep(model, batch, over, inputs=inputs, max_tokens=15, notify=lambda *counts: done.append(counts), **options, **stack)
    target, _ = last_answer(model(batch))
    assert found.log_p == pytest.approx(target(model(batch)).item(), abs=1e-12)
    length = model.config.n_positions if name == "vit" else 4 if name == "translator" else 5
    assert len(found.rows) == (n or length * len(options.get("blocks", [0, 1])))
    for row in found.rows:
        with transom.edits(model, [row.edit], inputs=inputs):
            assert row.log_p == pytest.approx(target(model(batch)).item(), abs=1e-6)
        assert row.change == pytest.approx(row.log_p - found.log_p)
    assert any(abs(row.change) > 1e-6 for row in found.rows)
    assert [(row.block, row.number) for row in found.rows] == sorted((row.block, row.number) for row in found.rows)
    assert len(done) > 1 and done[-1] == (len(found.rows), len(found.rows)) and model.edits is None


@torch.no_grad()
def test_cross_attention_is_swept_over_the_keys_of_the_source() -> None:
    model, batch, _ = one_row("translator")
    found = sweep(model, batch, "keys", part="cross")
    target, _ = last_answer(model(batch))
    assert len(found.rows) == 10
    for row in found.rows:
        assert isinstance(row.edit, KnockOutKey) and row.edit.keys == (row.number,) and row.edit.part == "cross"
        with transom.edits(model, [row.edit]):
            assert row.log_p == pytest.approx(target(model(batch)).item(), abs=1e-9)


@torch.no_grad()
def test_a_sweep_inside_a_scope_is_one_of_the_edited_model() -> None:
    model, batch, _ = one_row("gpt")
    target, _ = last_answer(model(batch))
    outer = [{"kind": "scale", "name": "resid_mid", "factor": 3.0}, {"kind": "unscaled-scores", "blocks": [0]}]
    with transom.edits(model, outer):
        base = target(model(batch)).item()
        found = {over: sweep(model, batch, over, target=target) for over in ("heads", "keys")}
        for result in found.values():
            assert result.log_p == pytest.approx(base)
            with transom.edits(model, [result.rows[2].edit]):
                assert result.rows[2].log_p == pytest.approx(target(model(batch)).item(), abs=1e-9)


@pytest.mark.parametrize(
    ("over", "options", "expected"),
    [
        ("positions", {}, "source: expected a text for positions"),
        ("heads", {"source": "other"}, "source: expected a text for positions, and none for heads"),
        ("heads", {"value": "resample"}, "texts: expected reference texts for resample, found none"),
        ("heads", {"blocks": [7]}, "blocks: expected indices from 0 to 1, found 7"),
        ("keys", {"part": "cross"}, "expected blocks with cross-attention"),
    ],
)
def test_options_that_do_not_fit_are_refused(over: Any, options: dict[str, Any], expected: str) -> None:
    model, batch, other = one_row("gpt")
    with pytest.raises(ConfigError, match=expected):
        sweep(model, batch, over, inputs={"other": other}, **options)


def test_several_rows_and_routed_blocks_are_refused() -> None:
    model, batch = build("gpt")
    with pytest.raises(ConfigError, match="batch: expected an input of one row, found 2"):
        sweep(model, batch, "heads")
    routed, batch = build("gpt", depth={"kind": "mod", "capacity": 0.5, "every": 2})
    one = routed.as_batch(torch.tensor([[3, 4]]))
    with pytest.raises(ConfigError, match=r"expected blocks that process all tokens, found a depth router at decoder\.blocks\.1"):
        sweep(routed, one, "positions", source="x", inputs={"x": one})


def test_copies_of_a_batch_have_its_rows() -> None:
    run = translator()
    batch = run.text_batch(run.encode("abc"))[0]
    copies = repeat_batch(batch, 3)
    assert copies.source.tokens.tolist() == batch.source.tokens.tolist() * 3 and copies.sample_ids == (0, 0, 0)
    assert torch.allclose(run.model(copies), run.model(batch).expand(3, -1, -1))


def test_rows_are_data() -> None:
    model, batch, other = one_row("gpt")
    row = sweep(model, batch, "positions", source="other", inputs={"other": other}).rows[3]
    assert isinstance(row.edit, Patch)
    assert row.to_json() == {
        "block": "decoder.blocks.0",
        "number": 3,
        "log_p": row.log_p,
        "change": row.change,
        "edit": {"kind": "patch", "name": "decoder.blocks.0.resid_post", "positions": [3], "text": "other"},
    }


def log_p_of(model: Network, tokens: list[int]) -> Tensor:
    """Compute log p of each token after the first by a pass."""
    row = torch.tensor([tokens])
    return model(row[:, :-1])[0].log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]  # type: ignore[no-any-return]


@torch.no_grad()
def test_the_answer_of_a_language_model_is_a_continuation() -> None:
    run = generator()
    own, given = ask(run, "abc"), ask(run, "abc", answer="de")
    log_p = run.model(own.batch)[0, -1].log_softmax(-1)
    assert own.target(run.model(own.batch)).tolist() == pytest.approx([float(log_p.max())])
    assert own.answer == run.tokenizer.symbols([int(log_p.argmax())])[0].replace("▁", " ")
    expected = log_p_of(run.model, [EOS, *run.encode("abcde")])[-2:].sum()
    assert given.answer == "de" and given.target(run.model(given.batch)).item() == pytest.approx(expected.item())
    with pytest.raises(ConfigError, match="answer: expected text and answer of at most 24 tokens, found "):
        ask(run, "abc", answer="d" * 30)
    with pytest.raises(ConfigError, match="answer: expected a text of at least one token, found none"):
        ask(run, "abc", answer="")


@torch.no_grad()
def test_the_answer_of_a_translator_is_a_translation() -> None:
    run = translator()
    own, given = ask(run, "abc"), ask(run, "abc", answer="bag")
    assert given.target(run.model(given.batch)).item() == pytest.approx(run.score(["abc"], ["bag"])[0].log_p)
    assert own.answer == run.tokenizers.target.decode(own.batch.labels[0].tolist()[:-1]) and "the model's own translation" in own.notes[0]
    assert own.target(run.model(own.batch)).item() == pytest.approx(run.score(["abc"], [own.answer])[0].log_p)


@torch.no_grad()
def test_the_answer_of_a_classifier_is_a_class() -> None:
    tokenizer = Tokenizer.train(["abcdefgh"], TokenizerConfig(kind="char"))
    model, _ = build("bert", vocab_size=tokenizer.vocab_size)
    run = Classifier(model, tokenizer)  # type: ignore[arg-type]
    own, given = ask(run, "abc"), ask(run, "abc", answer="b")
    found = run.classify(["abc"])[0]
    assert own.answer == found.label and own.target(model(own.batch)).exp().item() == pytest.approx(found.p)
    assert given.target(model(given.batch)).exp().item() == pytest.approx(found.probabilities["b"])
    with pytest.raises(ConfigError, match="answer: expected one of the classes a, b, c, found 'd'"):
        ask(run, "abc", answer="d")
    with pytest.raises(ConfigError, match="expected a run of a language model, translator or classifier, found Embedder"):
        ask(Embedder(model, tokenizer), "abc")
    several, _ = build("bert", vocab_size=tokenizer.vocab_size, multi_label=True)
    labels = MultiLabelClassifier(several, tokenizer)  # type: ignore[arg-type]
    each = ask(labels, "abc", answer="c")
    assert each.target(several(each.batch)).exp().item() == pytest.approx(labels.classify(["abc"])[0].probabilities["c"])


@torch.no_grad()
def test_the_answer_to_a_picture(tmp_path: Any) -> None:
    from PIL import Image

    model, _ = build("vit")
    file = tmp_path / "grey.png"
    Image.new("L", (4, 4), 90).save(file)
    run = ImageClassifier(model)  # type: ignore[arg-type]
    question = ask(run, None, file)
    assert question.answer == run.classify([file])[0].label
    found = sweep(run, question.batch, "positions", source=str(file), target=question.target)
    assert max(abs(row.change) for row in found.rows) < 1e-12, "a patch from the picture itself"
