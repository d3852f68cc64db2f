"""``torch.nn.Transformer`` with token embeddings, sinusoidal positions and a tied output projection."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.training import build_training_steps
from benchmarks.shapes import Shape, random_tokens
from transom.layers.position_encoding import sinusoidal_table


class Model(nn.Module):
    """The encoder-decoder, with dropout only where the other systems apply it, which is faster than its default."""

    def __init__(self, shape: Shape) -> None:
        """Build a model of a shape, randomly initialized."""
        super().__init__()
        c = shape.config
        self.embedding = nn.Embedding(shape.vocab, c.d_model)
        nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
        self.register_buffer("positions", sinusoidal_table(c.max_seq_len, c.d_model))
        self.dropout = nn.Dropout(c.dropout)
        self.transformer = nn.Transformer(
            c.d_model, c.n_heads, c.n_encoder_layers, c.n_decoder_layers, c.d_ff, c.dropout, batch_first=True, norm_first=False
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits of shape (pairs, target, vocab)."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = self.transformer(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        return F.linear(x, self.embedding.weight)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * self.embedding.embedding_dim**0.5 + self.positions[: tokens.shape[1]])


def training_steps(shape: Shape, compiled: bool) -> dict[str, Callable[[], float]]:
    """Return a training step per mode."""
    torch.manual_seed(1)
    model = Model(shape).train()
    source, labels = random_tokens(shape.pairs, shape.source, shape.vocab, 1), random_tokens(shape.pairs, shape.target, shape.vocab, 2)
    target = torch.cat([torch.full((shape.pairs, 1), 1), labels[:, :-1]], 1)
    return build_training_steps(model, lambda: model(source, target), labels, compiled)
