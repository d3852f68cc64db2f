import pytest
import torch
from torch import nn

from tests.models.tiny import seq2seq
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.inspection.recompute import recompute_attention_weights
from transom.layers.observe import ActivationRecorder
from transom.models.build import build_model

ATTENTIONS = ["encoder.blocks.0.attn", "encoder.blocks.1.attn", "decoder.blocks.0.attn", "decoder.blocks.0.cross"]


def record(grad: bool) -> tuple[nn.Module, dict[str, torch.Tensor], TranslationBatch]:
    """Record every site of a random model over two pairs of unequal length."""
    torch.manual_seed(2)
    model = build_model(seq2seq(n_encoder_layers=2, d_head=3, d_value=5)).double().eval()
    target = PaddedSequences.pad([[1, 4, 8], [1, 6]])
    batch = TranslationBatch(PaddedSequences.pad([[5, 3, 9, 2], [7, 2]]), target, target.tokens, (0, 1))
    recorder = ActivationRecorder(["*"])
    with torch.set_grad_enabled(grad):
        model(batch, recorder)
    return model, recorder.activations, batch


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("grad", [True, False], ids=["explicit", "fused"])
def test_the_pattern_gathers_the_very_values_that_the_model_used(attention: str, grad: bool) -> None:
    model, kept, batch = record(grad)
    z = recompute_attention_weights(model, attention, kept, batch) @ kept[f"{attention}.v"]
    assert torch.allclose(z, kept[f"{attention}.z"], rtol=0, atol=1e-14)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rows_sum_to_one_and_padding_gets_nothing(attention: str) -> None:
    model, kept, batch = record(grad=False)
    pattern = recompute_attention_weights(model, attention, kept, batch)
    keys = batch.decoder_input if attention == "decoder.blocks.0.attn" else batch.source
    queries = batch.source if attention.startswith("encoder") else batch.decoder_input
    assert torch.allclose(pattern.sum(-1)[1, :, : queries.lengths[1]], torch.ones((), dtype=pattern.dtype))
    assert not pattern[1, :, : queries.lengths[1], keys.lengths[1] :].any()


def test_the_decoder_never_attends_ahead() -> None:
    model, kept, batch = record(grad=False)
    assert not recompute_attention_weights(model, "decoder.blocks.0.attn", kept, batch).triu(1)[0].any()
