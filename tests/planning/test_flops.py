"""The arithmetic that is counted is the arithmetic that PyTorch does."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models.tiny import seq2seq
from transom.config.model import Seq2SeqConfig
from transom.config.vision import ConvolutionalNetworkConfig, ImageClassifierConfig, VisionTransformerConfig
from transom.data.batch import ImageBatch, PaddedSequences, TranslationBatch
from transom.models.build import build_model
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters


def config(**changes: object) -> Seq2SeqConfig:
    sizes = {"d_model": 12, "n_heads": 3, "d_ff": 20, "n_encoder_layers": 2, "n_decoder_layers": 3, "max_seq_len": 16}
    return seq2seq(**{**sizes, "target_vocab_size": 13, "tie_embeddings": "decoder", **changes})


def batch(n: int, source: int, target: int) -> TranslationBatch:
    torch.manual_seed(1)
    rows = [torch.randint(4, 11, (length,)).tolist() for length in (source, target) for _ in range(n)]
    return TranslationBatch(PaddedSequences.pad(rows[:n]), PaddedSequences.pad(rows[n:]), torch.tensor(rows[n:]), tuple(range(n)))


@pytest.mark.parametrize(
    "changes",
    [{}, {"d_head": 5, "d_value": 7}, {"attention": {"output_projection": False}}, {"norm_placement": "pre", "tie_embeddings": "none"}],
    ids=str,
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 5, 3), (4, 3, 7)], ids=str)
def test_the_count_is_what_is_done(changes, shape):
    model = build_model(config(**changes))
    with FlopCounterMode(display=False) as forward:
        logits = model(batch(*shape))
    counted = count_flops(config(**changes), *shape)
    assert counted.forward == forward.get_total_flops()
    by_module = forward.get_flop_counts()
    found = {part: sum(by_module[f"Seq2SeqTransformer.{part}"].values()) for part in ("encoder", "decoder")}
    for stack, flops in found.items():
        assert sum(count for part, count in counted.parts.items() if part.startswith(stack)) == flops
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert counted.training == forward.get_total_flops() + backward.get_total_flops()


@pytest.mark.parametrize("attention", ["none", {"kind": "se", "reduction": 2}, {"kind": "cbam", "reduction": 2, "kernel_size": 5}], ids=str)
@pytest.mark.parametrize("stem", [{"channels": (4, 6)}, {"channels": (8,), "convs_per_stage": 2}], ids=str)
@pytest.mark.parametrize("kind", [VisionTransformerConfig, ConvolutionalNetworkConfig])
def test_stems_and_what_weighs_their_channels_are_counted(kind: type[ImageClassifierConfig], stem: dict[str, Any], attention: Any) -> None:
    sizes = {"image_size": 16, "channels": 1, "stem": {"kind": "convolutional", "attention": attention, **stem}, "classes": ("a", "b")}
    patches = {"patch_size": 2, "d_model": 8, "n_heads": 2, "n_layers": 1} if kind is VisionTransformerConfig else {}
    c = kind.model_validate(sizes | patches)
    pixels, labels = torch.rand(3, 1, 16, 16), torch.tensor([0, 1, 0])
    with FlopCounterMode(display=False) as forward:
        build_model(c).eval()(ImageBatch(pixels, labels, (0, 1, 2)))
    assert count_flops(c, 3, c.n_positions if isinstance(c, VisionTransformerConfig) else 0, 1).forward == forward.get_total_flops()


def test_large_models_follow_the_rule_of_thumb():
    """Six operations a weight and token (Kaplan et al. 2020, section 2.1), where attention scores are small beside the weights."""
    c = Seq2SeqConfig(d_model=4096, n_heads=32, d_ff=16384, source_vocab_size=8, target_vocab_size=8)
    counted = count_flops(c, batch=1, source=32, target=32)
    assert counted.training == pytest.approx(6 * 32 * count_parameters(c).total, rel=0.01)


def test_rows_add_up():
    whole, row = count_flops(config(), 6, 5, 4), count_flops(config(), 1, 5, 4)
    assert whole.forward == 6 * row.forward
