"""How many numbers a model learns, from its configuration alone."""

from dataclasses import dataclass

from transom.config.model import Model, Seq2Seq


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
        """Those of the token tables, the output map included; they grow with the vocabulary alone."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: Model) -> Parameters:
    """Count the parameters of a model whose vocabulary sizes are known, without building it.

    An attention layer has 4 d_model^2 weights where h d_k = h d_v = d_model, a feed-forward layer 2 d_model d_ff; biases and norms
    come on top.
    """
    c = config
    assert c.source_vocab_size and c.target_vocab_size, "the vocabulary sizes come from the tokenizer"
    attention, feed_forward, norm = _attention(c), _feed_forward(c), 2 * c.d_model
    n_tables = {"all": 0, "decoder": 1, "none": 1}[c.tie]
    final = norm if c.norm_placement == "pre" else 0
    return Parameters(
        {
            "source_embedding": n_tables * c.source_vocab_size * c.d_model,
            "target_embedding": c.target_vocab_size * c.d_model,
            "unembedding": c.target_vocab_size * c.d_model if c.tie == "none" else 0,
            "encoder.attn": c.n_encoder_layers * attention,
            "encoder.ff": c.n_encoder_layers * feed_forward,
            "encoder.norm": c.n_encoder_layers * 2 * norm + final,
            "decoder.attn": c.n_decoder_layers * attention,
            "decoder.cross": c.n_decoder_layers * attention,
            "decoder.ff": c.n_decoder_layers * feed_forward,
            "decoder.norm": c.n_decoder_layers * 3 * norm + final,
        }
    )


def attention_widths(config: Seq2Seq) -> tuple[int, int, int]:
    """Return the columns of W_Q, of W_V, and the rows of W_O (0 without it); W_K is as wide as W_Q."""
    keys, values = config.n_heads * config.width_of_head, config.n_heads * config.width_of_value
    return keys, values, values if config.attention.output else 0


def _attention(c: Seq2Seq) -> int:
    keys, values, output = attention_widths(c)
    weights = c.d_model * (2 * keys + values + output)
    biases = (2 * keys + values) * c.attention.bias + c.d_model * (c.attention.output and c.attention.output_bias)
    return weights + biases


def _feed_forward(c: Seq2Seq) -> int:
    return 2 * c.d_model * c.d_ff + (c.d_ff + c.d_model) * c.feed_forward.bias
