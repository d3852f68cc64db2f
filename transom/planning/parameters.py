"""How many numbers a model learns, from its configuration alone: each brick counts its own."""

from dataclasses import dataclass

from transom.config.architecture import Architecture, Transformer
from transom.config.bricks import PLACEMENTS
from transom.config.model import Decoder, Encoder, MaskedEncoder, Seq2Seq, TextClassifier
from transom.config.recurrent import Recurrent, RecurrentDecoder, RecurrentSeq2Seq
from transom.config.vision import ConvolutionalNetwork, VisionTransformer
from transom.files.limits import FREE_POSITION_TABLE


@dataclass(frozen=True)
class Parameters:
    """Learned numbers by the part of the model that holds them; what is shared counts once.

    Attributes:
        parts: module path, with all blocks of a stack together, to count: "decoder.cross" is W_Q, W_K, W_V, W_O of every decoder block.
        idle: how many of them a token does not use: the experts that it is not sent to.
    """

    parts: dict[str, int]
    idle: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total - self.idle

    @property
    def embeddings(self) -> int:
        """Those of the token and position tables, the output map included."""
        return sum(count for part, count in self.parts.items() if "embedding" in part)


def count_parameters(config: Architecture) -> Parameters:
    """Count the parameters of a model whose vocabulary sizes are known, without building it.

    An attention layer has 4 d_model^2 weights where h d_k = h d_v = d_model, a feed-forward layer 2 d_model d_ff; biases and norms
    come on top.
    """
    c, parts = config, dict[str, int]()

    def table(vocab_size: int | None) -> int:
        assert vocab_size, "the vocabulary sizes come from the tokenizer"
        return vocab_size * (c.width_of_embedding if isinstance(c, Recurrent) else c.d_model)

    position = c.position.parameters(c.n_positions, c.d_model, c.n_heads) if isinstance(c, Transformer) else 0

    match c:
        case Seq2Seq():
            parts["source_embedding"] = (c.tie != "all") * table(c.source_vocab_size) + position
            parts["target_embedding"] = table(c.target_vocab_size) + position
            parts["unembedding"] = (c.tie == "none") * table(c.target_vocab_size)
            parts |= _stack(c, "encoder", c.n_encoder_layers, cross=False) | _stack(c, "decoder", c.n_decoder_layers, cross=True)
        case RecurrentSeq2Seq():
            parts["source_embedding"] = (c.tie != "all") * table(c.source_vocab_size)
            parts["target_embedding"] = table(c.target_vocab_size)
            parts["unembedding"] = (c.tie == "none") * (c.target_vocab_size or 0) * c.d_model
            parts |= _recurrent(c)
        case RecurrentDecoder():
            parts["embedding"] = table(c.vocab_size)
            parts["unembedding"] = (not c.tie) * (c.vocab_size or 0) * c.d_model
            parts["decoder.layers"] = sum(c.cell.parameters(d_in, c.d_model) for d_in in c.inputs)
        case Decoder():
            parts["embedding"] = table(c.vocab_size) + position
            parts["unembedding"] = (not c.tie) * table(c.vocab_size)
            parts |= _stack(c, "decoder", c.n_layers, cross=False)
        case Encoder():
            assert c.vocab_size, "the vocabulary size comes from the tokenizer"
            norm = c.norm.parameters(c.d_model)
            parts["embedding"] = table(c.vocab_size + 1) + position + c.embedding_norm * norm
            parts |= _stack(c, "encoder", c.n_layers, cross=False)
            if isinstance(c, MaskedEncoder):
                parts["transform"] = c.d_model * (c.d_model + 1) + norm
                parts["unembedding"] = (not c.tie) * table(c.vocab_size + 1)
            if isinstance(c, TextClassifier):
                parts["pooler"] = c.d_model * (c.d_model + 1)
                parts["unembedding"] = len(c.classes) * c.d_model
        case VisionTransformer():
            cls = c.d_model * (c.pool == "cls")
            parts["embedding"] = (c.patch_width + 1) * c.d_model + cls + position
            parts["embedding.stem"] = c.stem.parameters(c.channels)
            parts |= _stack(c, "encoder", c.n_layers, cross=False)
            parts["unembedding"] = len(c.classes) * c.d_model
        case ConvolutionalNetwork():
            parts["stem"] = c.stem.parameters(c.channels)
            parts["pooler"] = (c.maps[-1] + 1) * c.d_model
            parts["unembedding"] = len(c.classes) * c.d_model
        case _:
            raise AssertionError(c.kind)
    idle = sum(c.stacks) * c.feed_forward.idle(c.d_model, c.d_ff) if isinstance(c, Transformer) else 0
    return Parameters(parts, idle)


def excess_positions(config: Architecture) -> str | None:
    """Tell what is wrong with a table of positions that is computed, not learned, where it is larger than the weights justify; or None.

    A configuration alone vouches for such a table: a few bytes could ask for gigabytes.
    """
    if not isinstance(config, Transformer) or config.position.parameters(config.n_positions, config.d_model, config.n_heads):
        return None
    table, most = config.position_table, max(FREE_POSITION_TABLE, count_parameters(config).total)
    if table <= most:
        return None
    return (
        f"model.max_seq_len: expected {config.position.kind} positions of at most {most:,} numbers for a model of so many weights, found"
        f" {config.n_positions:,} positions and {table:,} numbers; lower max_seq_len, or take position 'alibi' or 'relative'"
    )


def _stack(c: Transformer, name: str, n_layers: int, cross: bool) -> dict[str, int]:
    attention = c.attention.parameters(c.d_model, c.n_heads, c.key_heads, c.width_of_head, c.width_of_value, c.n_positions)
    norm, placement = c.norm.parameters(c.d_model), PLACEMENTS[c.norm_placement]
    norms_a_block = (3 if cross else 2) * placement.norms_a_sub_layer + placement.norms_a_block
    return {
        f"{name}.attn": n_layers * attention,
        f"{name}.mixes": c.attention.value_residual.parameters(n_layers),
        **({f"{name}.cross": n_layers * attention} if cross else {}),
        f"{name}.depth": c.depth.parameters(n_layers, c.d_model),
        f"{name}.ff": n_layers * c.feed_forward.parameters(c.d_model, c.d_ff),
        f"{name}.norm": (n_layers * norms_a_block + placement.final_norm) * norm,
    }


def _recurrent(c: RecurrentSeq2Seq) -> dict[str, int]:
    width = c.d_model // c.n_directions
    return {
        "encoder.layers": c.n_directions * sum(c.cell.parameters(d_in, width) for d_in in c.encoder_inputs),
        "decoder.start": c.n_decoder_layers * c.cell.STATES * c.d_model * (c.d_model + 1),
        "decoder.layers": sum(c.cell.parameters(d_in, c.d_model) for d_in in c.decoder_inputs),
        "decoder.cross": c.attention.parameters(c.d_model, c.width_of_embedding),
    }
