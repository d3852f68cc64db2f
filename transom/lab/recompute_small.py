"""Small calculations of the articles: positions, two heads with W_O, attention of two tokens, softmax, and words of sentences."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transom.config.architecture import TransformerConfig
from transom.config.components import LearnedPositionConfig, MultiHeadAttentionConfig
from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.config.recipe import parse_model_config
from transom.config.rope_scaling import NoScalingConfig
from transom.data.tokenizer.char_word_tokenizer import WordVocabulary
from transom.lab.examples import Example
from transom.lab.recompute_translation import load_linear
from transom.lab.steps import Step, Value
from transom.layers.attention import Attention, attention_scores, attention_weights, scaled_dot_product_attention
from transom.layers.position_encoding import Sinusoidal
from transom.layers.rope_scaling import rotary_frequencies
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer


def small_steps(examples: Mapping[str, Example]) -> dict[str, Step]:
    """Return the steps of all small calculations."""
    with torch.no_grad():
        return {
            **two_head_steps(examples["002-two-wo"].value),
            **position_steps(),
            **hand_calculation_steps(examples),
            **softmax_steps(),
            **shape_steps(),
            **word_steps(),
        }


def constant(value: Tensor | float | list[float]) -> Step:
    """Return the step of a value that transom computes without printed inputs."""
    tensor = torch.as_tensor(value, dtype=torch.float64)
    return Step((), lambda: tensor)


def attention_layer(d_model: int, n_heads: int, d_head: int, output_projection: bool = True) -> Attention:
    """Build an attention layer without biases, in float64."""
    options = MultiHeadAttentionConfig(qkv_bias=False, output_bias=False, output_projection=output_projection)
    config = DecoderConfig(d_model=d_model, n_heads=n_heads, d_head=d_head, attention=options, position=LearnedPositionConfig())
    return Attention(config).double().requires_grad_(False)


def two_head_steps(w_o: Value) -> dict[str, Step]:
    """Return the concatenation of two heads of width 3 and its product with W_O, by a layer with this output projection."""
    layer = attention_layer(3, 2, 3)
    assert isinstance(layer.o, nn.Linear)
    load_linear(layer.o, w_o)
    o, concat = layer.o, "002-two-concat"
    steps = {concat: Step(("002-head-1", "002-head-2"), lambda *heads: torch.cat(heads, -1)), "002-two-output": Step((concat,), o)}
    for i in range(3):
        for j in range(3):
            at = f"002-two-o{i + 1}{j + 1}"
            steps[f"{at}-terms"] = Step((concat,), lambda z, i=i, j=j: z[i] * o.weight[j])
            steps[at] = Step((concat,), lambda z, i=i, j=j: o(z)[i, j])
    rows = torch.zeros(3, 6, dtype=torch.float64)
    return {**steps, "002-two-shapes": constant(torch.tensor([rows.shape, o.weight.T.shape, o(rows).shape]))}


def sinusoids(d_model: int) -> Sinusoidal:
    """Build the sinusoidal position encoding of a model of this width, in float64."""
    encoding = Sinusoidal(Seq2SeqConfig(d_model=d_model, n_heads=1, max_seq_len=128), causal=False)
    return encoding.double()


def position_steps() -> dict[str, Step]:
    """Return position encodings of width 4 and 8, their wavelengths and angles."""
    wide, narrow = sinusoids(8), sinusoids(4)
    frequencies = rotary_frequencies(NoScalingConfig(), 10000.0, 4, 2).theta  # those of the sinusoids
    steps = {f"000-p{i}": constant(wide(torch.tensor([[25 * i]]))[0, 0, :4]) for i in range(5)}
    return {
        **steps,
        "000-frequency": constant(rotary_frequencies(NoScalingConfig(), 10000.0, 8, 2).theta[0]),
        "002-scales": constant(1 / frequencies),
        "002-scale-exponents": constant(-frequencies.log() / math.log(10000)),
        "002-cos-angle": constant(frequencies[1]),
        "004-pe-0": constant(narrow(torch.tensor([[0]]))[0, 0]),
        "004-pe-1": constant(narrow(torch.tensor([[1]]))[0, 0]),
        "004-period": constant(2 * math.pi / frequencies[0]),
        "004-frequency": constant(frequencies[0]),
        "004-scale": constant(1 / frequencies[1]),
    }


def hand_calculation_steps(examples: Mapping[str, Example]) -> dict[str, Step]:
    """Return the attention of two tokens in article 004, by a layer with its matrices."""
    layer = attention_layer(2, 1, 2, output_projection=False)
    for name, linear in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
        linear.weight.copy_(examples[f"004-w{name}"].value)  # the article multiplies columns: q = W x
    steps = {}
    for i in (1, 2):
        for name, linear in (("q", layer.q), ("k", layer.k), ("v", layer.v)):
            steps[f"004-{name}{i}"] = Step((f"004-x{i}",), linear)
        steps[f"004-score1{i}"] = Step(("004-q1", f"004-k{i}"), _score)
    scores = ("004-score11", "004-score12")
    return {
        **steps,
        "004-exp": Step(("004-score11",), torch.exp),
        "004-exp-sum": Step(scores, lambda *s: torch.stack(s).logsumexp(0).exp()),
        "004-weights": Step(scores, lambda *s: attention_weights(torch.stack(s)[None, None, None])[0, 0, 0]),
        "004-output": Step(("004-weights", "004-v1", "004-v2"), lambda a, *v: a @ torch.stack(v)),
        "004-percent": Step(("004-share",), lambda share: 100 * share),
    }


def _score(q: Value, k: Value) -> Value:
    return attention_scores(q[None, None, None], k[None, None, None])[0, 0, 0, 0]


def softmax_steps() -> dict[str, Step]:
    """Return softmax weights of given scores, and the variance of a dot product."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 4)  # all vectors of mean 0 and variance 1
    products = attention_scores(signs[None, None], signs[None, None])
    return {
        "003-weights": Step(("003-scores",), lambda scores: attention_weights(scores[None, None, None])[0, 0, 0]),
        "000-output": Step(("000-attention",), lambda weights: weights @ torch.eye(5, dtype=torch.float64)),
        "001-variance": constant(products.var(correction=0)),
    }


def shape_steps() -> dict[str, Step]:
    """Return the shapes that articles print, from layers of these shapes."""
    q = torch.zeros(2, 8, 64, 64)
    weights = attention_weights(attention_scores(q, q))
    model = build_model(parse_model_config({"preset": "decoder-block", "vocab_size": 2})).eval()
    assert isinstance(model, DecoderOnlyTransformer)
    out, _ = model.decoder.blocks[0](torch.zeros(2, 128, 512))
    base = parse_model_config({"preset": "transformer-base"})
    assert isinstance(base, TransformerConfig)
    return {
        **_gpt3_shapes(),
        "004-attention-shape": constant([float(n) for n in scaled_dot_product_attention(q, q, q).shape]),
        "004-weights-sum": constant(weights[0, 0, 0].sum()),
        "004-block-shape": constant([float(n) for n in out.shape]),
        "002-embedding-sizes": constant([float(base.d_model), 4.0]),
        "004-hidden-width": constant(float(base.d_ff)),
    }


def _gpt3_shapes() -> dict[str, Step]:
    """Return the shapes of one attention layer of GPT-3, whose weights are on the meta device."""
    config = DecoderConfig(
        d_model=12288, n_heads=96, d_ff=4 * 12288, position=LearnedPositionConfig(), attention=MultiHeadAttentionConfig(qkv_bias=False)
    )
    with torch.device("meta"):
        layer = Attention(config)
        phrase, window = torch.empty(1, 4, 12288), torch.empty(1, 2048, 12288)
        q = layer.q(window).unflatten(-1, (-1, layer.d_head)).transpose(1, 2)
        scores = attention_scores(q, q)

    def sizes(*each: int) -> Step:
        return constant([float(n) for n in each])

    return {
        "003-head-width": constant(float(config.d_head)),
        "003-embeddings-shape": sizes(*phrase.shape[1:]),
        "003-wq-shape": sizes(layer.q.in_features, layer.d_head),
        "003-scores-shape": sizes(*scores.shape[2:]),
        "003-qk-shape": sizes(*q.shape[2:]),
        "003-hidden-width": constant(float(config.d_ff)),
    }


def word_steps() -> dict[str, Step]:
    """Return numbers and places of words in the articles' sentences, counted by the tokenizer of whitespace-separated words."""
    bank = words("The bank executive was convicted because she had embezzled funds from the bank.")
    fox, tall = words("The quick brown fox jumps."), words("The tallest building in NYC")
    cat = words("A fluffy blue cat.")
    places = [i + 1 for i, word in enumerate(bank) if word.strip(".") == "bank"]
    return {
        "000-tokens": constant(float(len(tall))),
        "000-places": constant([float(tall.index("building") + 1), float(tall.index("tallest") + 1)]),
        "003-cat-tokens": constant(float(len(cat))),
        "003-cat-place": constant(float(cat.index("cat.") + 1)),
        "004-bank-1": constant(float(places[0])),
        "004-bank-2": constant(float(places[1])),
        "004-bank-distance": Step(("004-bank-1", "004-bank-2"), lambda first, second: second - first),
        "004-fox": constant([float(fox.index("fox")), float(fox.index("brown"))]),
    }


def words(text: str) -> list[str]:
    """Split a text into words."""
    vocabulary = WordVocabulary.train([text], 100)
    return [vocabulary.symbols[token] for token in vocabulary.encode_batch([text])[0]]
