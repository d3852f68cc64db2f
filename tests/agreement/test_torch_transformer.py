"""The encoder-decoder against torch.nn.Transformer with the same weights: outputs and gradients, every element."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.agreement.torch_transformer import from_torch, to_torch
from transom.config.model import Seq2SeqConfig
from transom.data.batch import translation_batch
from transom.layers.position_encoding import sinusoidal_table
from transom.models.build import build_model

VOCAB, D_MODEL = 19, 16


class Reference(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoidal positions and a tied output projection."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        norm = (lambda: nn.LayerNorm(D_MODEL)) if norm_first else (lambda: None)
        sizes = {"d_model": D_MODEL, "nhead": 4, "dim_feedforward": 24, "dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), 2, norm(), enable_nested_tensor=False)
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 3, norm())
        self.transformer = nn.Transformer(D_MODEL, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
        self.table = nn.Parameter(torch.randn(VOCAB, D_MODEL) * 0.3)

    def forward(self, source: Tensor, target: Tensor, source_padding: Tensor, target_padding: Tensor) -> Tensor:
        def embed(tokens: Tensor) -> Tensor:
            return self.table[tokens] * math.sqrt(D_MODEL) + sinusoidal_table(tokens.shape[1], D_MODEL, dtype=self.table.dtype)

        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        states = self.transformer(
            embed(source),
            embed(target),
            tgt_mask=later,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return states @ self.table.T


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_outputs_and_gradients_agree(placement: str, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(1)
    reference = Reference(norm_first=placement == "pre").to(dtype).train()
    config = Seq2SeqConfig(
        d_model=D_MODEL,
        n_heads=4,
        d_ff=24,
        n_encoder_layers=2,
        n_decoder_layers=3,
        dropout=0.0,
        max_seq_len=16,
        norm_placement=placement,  # type: ignore[arg-type]
        source_vocab_size=VOCAB,
        target_vocab_size=VOCAB,
    )
    model = build_model(config).to(dtype).train()
    weights = dict(from_torch(reference.transformer.state_dict()))
    tables = ("source_embedding.tokens.weight", "target_embedding.tokens.weight", "unembedding.weight")
    model.load_state_dict({**weights, **dict.fromkeys(tables, reference.table.data)})
    batch = translation_batch([[3, 4, 5, 6, 7], [8, 9], [10, 11, 12]], [[4, 5, 6], [7, 8, 9, 10, 11], [12]], range(3))
    real = batch.decoder_input.segments > 0

    expected = reference(batch.source.tokens, batch.decoder_input.tokens, batch.source.segments == 0, ~real)[real]
    found = model(batch)[real]
    assert (found - expected).abs().max() <= tolerance

    weight = torch.randn_like(expected)
    (expected * weight).sum().backward()
    (found * weight).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    table_grad = grads.pop("source_embedding.tokens.weight")
    theirs = from_torch({name: p.grad for name, p in reference.transformer.named_parameters()})
    assert grads.keys() == theirs.keys()
    for name, grad in {**grads, "table": table_grad}.items():
        other = reference.table.grad if name == "table" else theirs[name]
        # In float32 the measure is each tensor's own largest gradient, up to 20 here; the worst is off by 1.3e-6 of it. The gradient of a
        # key's bias has no size of its own: a softmax does not see it, the true gradient is 0, and what is found is rounding (3e-7).
        sized = dtype == torch.float32 and not name.endswith(".k.bias")
        assert (grad - other).abs().max() <= tolerance * (other.abs().max() if sized else 1.0), name
    assert to_torch(weights).keys() == reference.transformer.state_dict().keys()
