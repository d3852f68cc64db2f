"""The translation of "Hello World" in article 002, recomputed by an encoder-decoder Transformer with the article's matrices.

Every step is a module or function of this model, applied to the values that the step reads. With computed values throughout, the steps give
the forward pass of the model.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.components import FeedForwardConfig, LayerNormConfig, MultiHeadAttentionConfig
from transom.config.model import Seq2SeqConfig
from transom.inspection.activations import Activations
from transom.inspection.derive_attention import AttentionInputs
from transom.lab.examples import Example
from transom.lab.steps import Step, Value
from transom.layers.attention import DEFAULT_ARGS, Attention, attention_weights
from transom.layers.block import PostNormBlock, ResidualConnection
from transom.layers.feed_forward import FeedForward
from transom.models.build import build_uninitialized
from transom.models.inputs import TensorBatch
from transom.models.seq2seq import Seq2SeqTransformer

TARGET_WORDS = ("hello", "hola", "EOS", "SOS", "mundo", "world", "a", "?", "the", "el")
"""The article's list of target words."""

HELLO, WORLD, SOS = 1, 2, TARGET_WORDS.index("SOS")
"""Token ids; those of the source words are the article's."""

SOURCE, TARGET = torch.tensor([[HELLO, WORLD]]), torch.tensor([[SOS]])


def build_translator(given: Callable[[str], Tensor]) -> Seq2SeqTransformer:
    """Build the article's model in float64: one encoder and one decoder block, d_model 4, 2 heads of width 3, d_ff 8, post-norm.

    Args:
        given: returns the numbers that the article gives, by the name of the example without the article.
    """
    config = Seq2SeqConfig(
        d_model=4,
        n_heads=2,
        d_head=3,
        d_ff=8,
        n_encoder_layers=1,
        n_decoder_layers=1,
        source_vocab_size=3,
        target_vocab_size=10,
        max_seq_len=20,
        tie_embeddings="none",
        scale_embeddings=False,
        head_bias=True,
        dropout=0.0,
        norm=LayerNormConfig(eps=1e-5),
        norm_placement="post",
        attention=MultiHeadAttentionConfig(qkv_bias=False, output_bias=False),
        feed_forward=FeedForwardConfig(kind="relu"),
    )
    model = build_uninitialized(config).double().eval().requires_grad_(False)
    assert isinstance(model, Seq2SeqTransformer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # embeddings of words that the article does not give, and the bias of the norms
        for name, module in model.named_modules():
            if name.endswith(".norm"):
                module.weight.fill_(1.0)  # gamma
        model.source_embedding.tokens.weight[[HELLO, WORLD]] = torch.stack([given("hello"), given("world")])
        model.target_embedding.tokens.weight[SOS] = given("sos")
        encoder, decoder = blocks_of(model)
        load_attention(encoder.attn, given, "enc")
        load_attention(decoder.attn, given, "dec")
        load_attention(decoder.cross, given, "cross")
        load_feed_forward(encoder.ff, given, "enc")
        load_feed_forward(decoder.ff, given, "dec")
        load_linear(model.unembedding, given("vocab-w"), given("vocab-b"))
    return model


def load_linear(layer: nn.Linear, weight: Float[Tensor, "d_in d_out"], bias: Float[Tensor, "d_out"] | None = None) -> None:
    """Set a linear layer to x W + b; PyTorch stores W transposed."""
    layer.weight.copy_(weight.T)
    if bias is not None:
        layer.bias.copy_(bias)


def load_attention(layer: Attention | None, given: Callable[[str], Tensor], part: str) -> None:
    """Set the projections of an attention layer to the article's matrices of both heads, side by side, and W_O."""
    assert layer is not None and isinstance(layer.o, nn.Linear)
    for name, linear in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
        load_linear(linear, torch.cat([given(f"{part}-w{name}{head}") for head in (1, 2)], 1))
    load_linear(layer.o, given(f"{part}-wo"))


def load_feed_forward(layer: nn.Module, given: Callable[[str], Tensor], part: str) -> None:
    """Set both layers of a feed-forward network."""
    assert isinstance(layer, FeedForward)
    load_linear(layer.up, given(f"{part}-w1"), given(f"{part}-b1"))
    load_linear(layer.down, given(f"{part}-w2"), given(f"{part}-b2"))


def blocks_of(model: Seq2SeqTransformer) -> tuple[PostNormBlock, PostNormBlock]:
    """Return the block of the encoder and the block of the decoder."""
    encoder, decoder = model.encoder.blocks[0], model.decoder.blocks[0]
    assert isinstance(encoder, PostNormBlock) and isinstance(decoder, PostNormBlock)
    return encoder, decoder


def translation_batch(model: Seq2SeqTransformer) -> TensorBatch:
    """Return the article's input: "Hello World" and the start of the translation."""
    return model.make_batch(SOURCE, decoder_tokens=TARGET)


class TranslationSteps:
    """The steps of the article's forward pass, by id."""

    def __init__(self, examples: Mapping[str, Example]) -> None:
        """Build the model from the given numbers among ``examples``, and list its steps."""
        self.model = build_translator(lambda name: examples[f"002-{name}"].value)
        self.batch: Any = translation_batch(self.model)
        self.steps: dict[str, Step] = {}
        encoder, decoder = self.blocks = blocks_of(self.model)
        self._embeddings()
        self._attention("enc", encoder.attn, "e", "e")
        self._products("enc-q1", encoder.attn.q, "e", ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)))
        self._feed_forward("raw", encoder.ff, "enc-mha")  # the article applies it to the attention output first
        self._residual("enc-1", "e", "enc-mha", encoder.attn_residual)
        self._feed_forward("enc", encoder.ff, "enc-1-out")
        self._residual("enc-2", "enc-1-out", "enc-out", encoder.ff_residual)
        self._attention("dec", decoder.attn, "x0", "x0")
        self._products("dec-q1", decoder.attn.q, "x0", ((0,), (1,), (2,)))
        self.add("dec-q1", lambda *elements: torch.stack(elements), "dec-q1-0", "dec-q1-1", "dec-q1-2")
        self._residual("dec-1", "x0", "dec-mha", decoder.attn_residual)
        self._attention("cross", decoder.cross, "dec-1-out", "enc-2-out")
        self._residual("dec-2", "dec-1-out", "cross-mha", decoder.cross_residual)
        self._feed_forward("dec", decoder.ff, "dec-2-out")
        self._residual("dec-3", "dec-2-out", "dec-out", decoder.ff_residual)
        self._statistics()
        self._generator()
        self._shapes()

    def add(self, name: str, compute: Callable[..., Value], *inputs: str) -> None:
        """Add a step."""
        self.steps[f"002-{name}"] = Step(tuple(f"002-{each}" for each in inputs), compute)

    def derive(self, address: str, recorded: Mapping[str, Value]) -> Value:
        """Return a quantity of ``transom names`` that follows from recorded ones."""
        return Activations(self.model, self.batch, recorded)[address]

    def _embeddings(self) -> None:
        source, target = self.model.source_embedding, self.model.target_embedding
        for place in (0, 1):
            self.add(f"pe-{place}", lambda place=place: source.position(torch.tensor([[place]]))[0, 0])
        self.add("cos", lambda pe: pe[3], "pe-1")
        self.add("dec-pe", lambda: target.position(torch.tensor([[0]]))[0, 0])
        self.add("sum-hello", torch.add, "hello", "pe-0")
        self.add("sum-world", torch.add, "world", "pe-1")
        self.add("e", lambda *rows: torch.stack(rows), "sum-hello", "sum-world")
        self.add("x0", torch.add, "sos", "dec-pe")
        self.add("sqrt3", lambda: torch.tensor(self.model.config.d_head, dtype=torch.float64).sqrt())

    def _products(self, name: str, layer: nn.Linear, x: str, places: tuple[tuple[int, ...], ...]) -> None:
        """Add the products and the sum of single elements of the queries of the first head; the last index is the element."""
        for place in places:
            which = "".join(map(str, place))
            self.add(f"{name}-{which}-terms", lambda x, at=place: x[at[:-1]] * layer.weight[at[-1]], x)
            self.add(f"{name}-{which}", lambda x, at=place: layer(x)[at], x)

    def _attention(self, part: str, layer: Attention | None, queries: str, keys: str) -> None:
        """Add the steps of an attention layer with two heads."""
        assert layer is not None
        for head in (0, 1):
            n = head + 1
            for name, linear, x in (("q", layer.q, queries), ("k", layer.k, keys), ("v", layer.v, keys)):
                self.add(f"{part}-{name}{n}", lambda x, linear=linear, head=head: linear(x).unflatten(-1, (2, -1))[..., head, :], x)
            self.add(f"{part}-dots{n}", _dot_products, f"{part}-q{n}", f"{part}-k{n}")
            self.add(f"{part}-scores{n}", lambda dots: dots * layer.d_head**-0.5, f"{part}-dots{n}")
            self.add(f"{part}-weights{n}", _weights, f"{part}-scores{n}")
            self.add(f"{part}-z{n}", _weighted_values, f"{part}-weights{n}", f"{part}-v{n}")
        self.add(f"{part}-concat", lambda *z: torch.cat(z, -1), f"{part}-z1", f"{part}-z2")
        self.add(f"{part}-mha", layer.o, f"{part}-concat")

    def _feed_forward(self, part: str, layer: nn.Module, x: str) -> None:
        assert isinstance(layer, FeedForward)
        self.add(f"{part}-pre", layer.up, x)
        self.add(f"{part}-hidden", layer.activation, f"{part}-pre")
        self.add(f"{part}-out", layer.down, f"{part}-hidden")

    def _residual(self, name: str, x: str, y: str, residual: ResidualConnection) -> None:
        """Add a residual sum and its norm."""
        self.add(f"{name}-sum", lambda x, y: residual.add(_matrix(x)[None], _matrix(y)[None]).reshape(x.shape), x, y)
        self.add(f"{name}-out", residual.norm, f"{name}-sum")

    def _statistics(self) -> None:
        """Add means, variances and standard deviations of the decoder's norms, as far as the article prints them."""

        def statistic(name: str, path: str, quantity: str, change: Callable[[Value], Value] = lambda x: x) -> None:
            norm = f"decoder.blocks.0.{path}_residual.norm"
            compute = partial(self._statistic, norm, quantity)
            self.add(name, lambda z: change(compute(z)), f"{name[:5]}-sum")

        for name, path in (("dec-1", "attn"), ("dec-2", "cross"), ("dec-3", "ff")):
            statistic(f"{name}-mean", path, "mean")
        statistic("dec-1-variance", "attn", "variance")
        statistic("dec-2-std", "cross", "variance", torch.sqrt)
        statistic("dec-3-total", "ff", "mean", lambda mean: 4 * mean)
        statistic("dec-3-squares", "ff", "variance", lambda variance: 4 * variance)
        self.add("dec-1-std", torch.sqrt, "dec-1-variance")
        self.add("dec-3-variance", lambda squares: squares / 4, "dec-3-squares")
        self.add("dec-3-std", torch.sqrt, "dec-3-variance")

    def _statistic(self, norm: str, quantity: str, z: Value) -> Value:
        return self.derive(f"{norm}.{quantity}", {f"{norm}.x": z})

    def _generator(self) -> None:
        """Add the steps from the last hidden state to the probabilities."""
        self.add("hidden", self.blocks[1].ff_residual.norm, "dec-3-sum")
        self.add("logit-0", lambda x: self.model.unembedding(x)[0], "hidden")
        self.add("logits", self.model.unembedding, "hidden")
        self.add("probs", lambda z: self.derive("probs", {"logits": z}), "logits")
        self.add("argmax", lambda p: p.argmax().double(), "probs")
        self.add("percent", lambda p: 100 * p.max(), "probs")

    def _shapes(self) -> None:
        """Add the shapes that the article prints, of the model's states and of its matrices, which multiply from the right."""
        memory = self.model.encode(self.batch.source).states[0]
        hidden = self.model.last_hidden_state(self.batch)[0]
        vocab = self.model.unembedding
        for part, x, block in zip(("enc", "dec"), (memory, hidden), self.blocks, strict=True):
            assert isinstance(block.ff, FeedForward) and isinstance(block.attn.o, nn.Linear)
            w_q, w_o, w_1, w_2 = block.attn.q.weight[:3].T, block.attn.o.weight.T, block.ff.up.weight.T, block.ff.down.weight.T
            concat = x.new_zeros(len(x), len(w_o))
            states = (x,) if part == "enc" else ()
            self.add(f"{part}-shapes", _shapes_of(*states, w_q, concat, w_o, block.attn.o(concat), w_1, w_2))
        self.add("vocab-shapes", _shapes_of(hidden, vocab.weight.T, vocab.bias[None], vocab(hidden)))
        self.add("vocab-size", lambda: torch.tensor([vocab.out_features, TARGET_WORDS.index("hola")], dtype=torch.float64))


def _shapes_of(*tensors: Tensor) -> Callable[[], Value]:
    """Return a function that returns the shapes of tensors."""
    return lambda: torch.tensor([each.shape for each in tensors], dtype=torch.float64)


def _matrix(x: Value) -> Value:
    """Return a vector as a matrix of one row, and a matrix unchanged."""
    return x if x.ndim == 2 else x[None]


def _dot_products(q: Value, k: Value) -> Value:
    dots = AttentionInputs(_matrix(q)[None, None], _matrix(k)[None, None], DEFAULT_ARGS).dot_products()
    return dots.squeeze() if q.ndim == 1 else dots[0, 0]


def _weights(scores: Value) -> Value:
    """Return the softmax of each row; a single score is one row."""
    return attention_weights(scores.reshape(1, 1, -1, scores.shape[-1] if scores.ndim else 1))[0, 0].reshape(scores.shape or (1,))


def _weighted_values(weights: Value, v: Value) -> Value:
    return (weights @ _matrix(v)).reshape(*weights.shape[:-1], v.shape[-1])


def translation_steps(examples: Mapping[str, Example]) -> dict[str, Step]:
    """Return the steps of the article's forward pass."""
    with torch.no_grad():
        return TranslationSteps(examples).steps
