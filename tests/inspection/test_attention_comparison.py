"""The comparison of kinds of attention: errors against formulas, memory that is counted, what fits where."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transom.config.approximations import LinformerConfig
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig, TextClassifierConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import ImageBatch, LabeledTextBatch, LanguageBatch, PaddedSequences, TranslationBatch
from transom.errors import ConfigError
from transom.inspection.attention_comparison import (
    EXPLICIT_NAME,
    AttentionComparison,
    ComparisonSettings,
    MethodCost,
    average_costs,
    compare_attention_methods,
    peak_bytes,
    record_attention_inputs,
    relative_error,
)
from transom.inspection.pages.attention_comparison_page import comparison_page
from transom.layers.approximations.approximate_attention import build_approximation
from transom.layers.attention import attention_scores, attention_weights
from transom.models.build import build_model

SIZES: dict[str, Any] = {"d_model": 16, "n_heads": 4, "d_ff": 8, "n_layers": 2, "max_seq_len": 64, "dropout": 0.0}
ROW = PaddedSequences.pad([[2, *torch.arange(39).remainder(7).add(3).tolist()]])
QUICK = ComparisonSettings(features=(8, 256), ranks=(4, 16), windows=(8,), repeats=1)
CPU = torch.device("cpu")
APPROXIMATED = ["linear, elu", "linear, relu", "performer, 8 features", "performer, 256 features"]
LOW_RANK = [f"linformer, rank {n}, means" for n in (4, 16)] + [f"nystrom, {n} landmarks" for n in (4, 16)]


def built(config: Any) -> nn.Module:
    torch.manual_seed(1)
    return build_model(config).eval()


def decoder(**fields: Any) -> Any:
    return built(DecoderConfig.model_validate(SIZES | {"vocab_size": 12} | fields))


LANGUAGE = LanguageBatch(ROW, ROW.tokens, (0,))


def kinds(costs: list[MethodCost]) -> list[str]:
    return [cost.kind for cost in costs]


def by_kind(costs: list[MethodCost]) -> dict[str, MethodCost]:
    return {cost.kind: cost for cost in costs}


@pytest.fixture(scope="module")
def of_decoder() -> AttentionComparison:
    return compare_attention_methods(
        decoder(), LANGUAGE, ComparisonSettings(lengths=(128, 512), features=(8, 256), ranks=(4,), windows=(8,), repeats=1)
    )


@pytest.mark.kernels
def test_a_decoder_is_compared_where_nothing_looks_ahead(of_decoder: AttentionComparison) -> None:
    assert of_decoder.tokens == {"decoder.blocks.0.attn": 40, "decoder.blocks.1.attn": 40}
    for costs in of_decoder.layers.values():
        assert kinds(costs) == ["exact, fused", EXPLICIT_NAME, "window 8", *APPROXIMATED]
        found = by_kind(costs)
        assert found[EXPLICIT_NAME].output_error < 1e-5 and found["exact, fused"].output_error < 1e-5
        assert 0 < found["performer, 256 features"].output_error < found["performer, 8 features"].output_error
        assert all(cost.seconds > 0 and cost.bytes > 0 for cost in costs)
    assert any("Linformer and Nystrom" in note for note in of_decoder.notes)


def test_other_lengths_show_how_costs_grow(of_decoder: AttentionComparison) -> None:
    assert list(of_decoder.lengths) == [128, 512]
    short, long = (by_kind(costs) for costs in of_decoder.lengths.values())
    assert all(cost.weights_error is None for cost in long.values())
    growth = {kind: long[kind].bytes / short[kind].bytes for kind in short}
    assert growth[EXPLICIT_NAME] > 12 and growth["linear, elu"] < 6, "16 times the pairs, 4 times the tokens"


def test_means_are_those_of_the_layers(of_decoder: AttentionComparison) -> None:
    first, second = (by_kind(costs) for costs in of_decoder.layers.values())
    for cost in of_decoder.averages:
        a, b = first[cost.kind], second[cost.kind]
        assert cost.output_error == pytest.approx((a.output_error + b.output_error) / 2)
        assert cost.seconds == pytest.approx((a.seconds + b.seconds) / 2) and cost.bytes == round((a.bytes + b.bytes) / 2)
    assert average_costs([[MethodCost("a", 1.0, None, 1.0, 2)], [MethodCost("b", None, None, 3.0, 4)]]) == [
        MethodCost("a", 1.0, None, 1.0, 2),
        MethodCost("b", None, None, 3.0, 4),
    ]


@pytest.mark.kernels
def test_an_encoder_has_every_kind_and_exactness_is_found() -> None:
    c = MaskedLMConfig.model_validate(SIZES | {"vocab_size": 12})
    found = compare_attention_methods(built(c), LabeledTextBatch(ROW, torch.tensor([0]), (0,)), QUICK)
    for costs in found.layers.values():
        assert kinds(costs) == ["exact, fused", EXPLICIT_NAME, "window 8", *APPROXIMATED, *LOW_RANK]
        errors = by_kind(costs)
        for kind in LOW_RANK:
            assert 0 < errors[kind].output_error < 1.5
        assert errors["nystrom, 16 landmarks"].weights_error < errors["linear, elu"].weights_error * 3
    assert not any("Linformer and Nystrom would" in note for note in found.notes)


def test_linformer_mixes_by_means_of_runs() -> None:
    c = TextClassifierConfig.model_validate(SIZES | {"vocab_size": 12, "classes": ["a", "b"]})
    batch = LabeledTextBatch(ROW, torch.tensor([0]), (0,))
    model = built(c)
    found = compare_attention_methods(model, batch, QUICK)
    place = record_attention_inputs(model, batch)[0]
    k, v = (x.unflatten(2, (4, 10)).mean(3) for x in (place.k, place.v))
    z, exact = attention_weights(attention_scores(place.q, k)) @ v, attention_weights(attention_scores(place.q, place.k)) @ place.v
    expected = ((z - exact).norm(dim=(2, 3)) / exact.norm(dim=(2, 3))).mean()
    assert by_kind(found.layers[place.address])["linformer, rank 4, means"].output_error == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.kernels
def test_a_translator_has_all_three_attentions() -> None:
    fields = {"n_encoder_layers": 1, "n_decoder_layers": 1, "source_vocab_size": 12, "target_vocab_size": 12}
    sizes = {name: value for name, value in SIZES.items() if name != "n_layers"}
    target = PaddedSequences.pad([[1, *ROW.tokens[0, :20].tolist()]])
    found = compare_attention_methods(
        built(Seq2SeqConfig.model_validate(sizes | fields)), TranslationBatch(ROW, target, target.tokens, (0,)), QUICK
    )
    exact = ["exact, fused", EXPLICIT_NAME]
    assert {address: kinds(costs) for address, costs in found.layers.items()} == {
        "encoder.blocks.0.attn": [*exact, "window 8", *APPROXIMATED, *LOW_RANK],
        "decoder.blocks.0.attn": [*exact, "window 8", *APPROXIMATED, *LOW_RANK[:0]],
        "decoder.blocks.0.cross": [*exact, *APPROXIMATED, *LOW_RANK[:2]],
    }
    assert found.tokens == {"encoder.blocks.0.attn": 40, "decoder.blocks.0.attn": 21, "decoder.blocks.0.cross": 40}


def test_images_have_their_attention_compared() -> None:
    c = VisionTransformerConfig.model_validate(
        {"d_model": 16, "n_heads": 2, "n_layers": 1, "image_size": 8, "patch_size": 2, "classes": ["a", "b"]}
    )
    found = compare_attention_methods(built(c), ImageBatch(torch.rand(1, 3, 8, 8), torch.zeros(1, dtype=torch.long), (0,)), QUICK)
    assert kinds(found.averages)[-1] == "nystrom, 16 landmarks" and found.tokens == {"encoder.blocks.0.attn": 17}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": {"softcap": 2.0, "sinks": True}}, "softcap and sinks"),
        ({"position": "alibi"}, "a position bias"),
        ({"attention": {"pattern": {"kind": "window", "size": 9}}}, "a sparsity pattern"),
        ({"attention": {"approximation": "performer"}}, "not with exact attention"),
    ],
)
@pytest.mark.kernels
def test_what_approximations_leave_out_is_said(fields: dict[str, Any], words: str) -> None:
    found = compare_attention_methods(
        decoder(**fields), LANGUAGE, ComparisonSettings(lengths=(50,), features=(8,), windows=(8,), repeats=1)
    )
    assert any(words in note for note in found.notes)
    exact = by_kind(found.averages)[EXPLICIT_NAME]
    assert exact.output_error is not None and exact.output_error < 1e-5
    assert ("exact, fused" in by_kind(found.averages)) == ("softcap" not in str(fields))


def test_blocks_that_only_chosen_tokens_pass_are_left_out() -> None:
    found = compare_attention_methods(decoder(depth="mod", attention={"value_residual": "learned"}), LANGUAGE, QUICK)
    assert list(found.layers) == ["decoder.blocks.0.attn"] and "mixture-of-depths blocks are skipped" in found.notes
    with pytest.raises(ConfigError, match=r"found model\.depth = 'mod' in every block, which leaves no attention layer over all tokens"):
        compare_attention_methods(decoder(depth={"kind": "mod", "every": 1}), LANGUAGE, QUICK)


def test_what_has_no_such_attention_is_refused() -> None:
    from transom.config.recurrent import RecurrentDecoderConfig

    model = built(RecurrentDecoderConfig.model_validate({"d_model": 8, "vocab_size": 12}))
    with pytest.raises(ConfigError, match=r"expected a run of a Transformer, found model\.kind = 'recurrent-decoder'"):
        compare_attention_methods(model, LANGUAGE, QUICK)  # type: ignore[arg-type]


def test_memory_is_counted() -> None:
    x = torch.zeros(250_000)  # a million bytes
    assert peak_bytes(lambda: x + 1, CPU) == pytest.approx(1_000_000, abs=64)  # and some numbers of a few bytes
    assert peak_bytes(lambda: (x + 1) + (x + 2), CPU) == pytest.approx(3_000_000, abs=64)

    def in_turn() -> Tensor:
        for _ in range(5):
            y = x + 1
            del y
        return x

    assert peak_bytes(in_turn, CPU) == pytest.approx(1_000_000, abs=64)


def test_the_error_is_a_mean_over_heads() -> None:
    exact = torch.ones(1, 2, 3, 4)
    found = exact.clone()
    found[:, 0] *= 1.5
    assert relative_error(found, exact) == pytest.approx(0.25) and relative_error(exact, exact) == 0


def test_the_page_has_every_table_and_escapes(of_decoder: AttentionComparison) -> None:
    page = comparison_page("<run>", of_decoder, ["a <note>"])
    assert page.count("<table") == 5 and "&lt;run&gt;" in page and "A &lt;note&gt;." in page and "<run>" not in page
    assert "decoder.blocks.1.attn, 40 tokens" in page and "512 tokens" in page and "default-src 'none'" in page


@pytest.mark.kernels
def test_ranks_as_large_as_the_text_are_left_out() -> None:
    c = MaskedLMConfig.model_validate(SIZES | {"vocab_size": 12})
    found = compare_attention_methods(
        built(c), LabeledTextBatch(ROW, torch.tensor([0]), (0,)), ComparisonSettings(features=(), ranks=(39, 40), windows=(40,), repeats=1)
    )
    assert kinds(found.averages) == ["exact, fused", EXPLICIT_NAME, *APPROXIMATED[:2], "linformer, rank 39, means", "nystrom, 39 landmarks"]
    assert build_approximation(LinformerConfig(rank=39), 4, 40).e.out_features == 39
