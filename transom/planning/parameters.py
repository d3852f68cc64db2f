"""How many numbers a model learns, from its configuration alone: each brick counts its own."""

from dataclasses import dataclass

from transom.config.bricks import PLACEMENTS
from transom.config.model import Model


@dataclass(frozen=True)
class Parameters:
    """Learned numbers by the part of the model that holds them; what is shared counts once.

    Attributes:
        parts: module path, with all blocks of a stack together, to count: "decoder.cross" is W_Q, W_K, W_V, W_O of every decoder block.
    """

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def embeddings(self) -> int:
        """Those of the token and position tables, the output map included."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: Model) -> Parameters:
    """Count the parameters of a model whose vocabulary sizes are known, without building it.

    An attention layer has 4 d_model^2 weights where h d_k = h d_v = d_model, a feed-forward layer 2 d_model d_ff; biases and norms
    come on top.
    """
    c = config
    assert c.source_vocab_size and c.target_vocab_size, "the vocabulary sizes come from the tokenizer"
    attention = c.attention.parameters(c.d_model, c.n_heads, c.key_heads, c.width_of_head, c.width_of_value)
    feed_forward, norm = c.feed_forward.parameters(c.d_model, c.d_ff), c.norm.parameters(c.d_model)
    position = c.position.parameters(c.max_seq_len, c.d_model, c.n_heads)
    n_tables = {"all": 0, "decoder": 1, "none": 1}[c.tie]
    placement = PLACEMENTS[c.norm_placement]
    of_encoder, of_decoder = (n * placement.norms_a_sub_layer + placement.norms_a_block for n in (2, 3))
    final = norm * placement.final_norm
    return Parameters(
        {
            "source_embedding": n_tables * c.source_vocab_size * c.d_model + position,
            "target_embedding": c.target_vocab_size * c.d_model + position,
            "unembedding": c.target_vocab_size * c.d_model if c.tie == "none" else 0,
            "encoder.attn": c.n_encoder_layers * attention,
            "encoder.ff": c.n_encoder_layers * feed_forward,
            "encoder.norm": c.n_encoder_layers * of_encoder * norm + final,
            "decoder.attn": c.n_decoder_layers * attention,
            "decoder.cross": c.n_decoder_layers * attention,
            "decoder.ff": c.n_decoder_layers * feed_forward,
            "decoder.norm": c.n_decoder_layers * of_decoder * norm + final,
        }
    )
