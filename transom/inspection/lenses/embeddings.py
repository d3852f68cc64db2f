"""Nearest neighbors of a word's embedding, and analogies such as king - man + woman.

A vocabulary of subwords has one vector per token. A word of several tokens is represented by the mean of their vectors. The tokens that are
ranked are those of the vocabulary, without special tokens.
"""

import difflib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError
from transom.inspection.activations import find_network
from transom.models.base import GenerativeModel
from transom.models.encoder import MaskedEncoderTransformer

Side = Literal["source", "target"]
Method = Literal["add", "mul"]

EPSILON = 1e-3
"""Added to the denominator of 3CosMul (Levy and Goldberg 2014)."""


class EmbeddingTable(NamedTuple):
    """A matrix with one row per token of a vocabulary.

    Attributes:
        path: path of the module that holds it, such as ``embedding.tokens`` or ``unembedding``.
        weight: the vectors in float64.
        tokenizer: tokenizer of the vocabulary; None for a model without one, whose words are token ids.
        tied: whether input and output embedding of this side are the same matrix.
    """

    path: str
    weight: Float[Tensor, "vocab d_model"]
    tokenizer: Tokenizer | None
    tied: bool

    def symbols(self, tokens: Sequence[int]) -> list[str]:
        """Return the printed form of tokens: their symbols, or ids without a tokenizer."""
        return [f"#{token}" for token in tokens] if self.tokenizer is None else self.tokenizer.symbols(tokens)

    def is_special(self, token: int) -> bool:
        """Return whether a token stands for no text: padding, start, end, unknown, or a language tag."""
        return self.tokenizer is not None and self.tokenizer.is_special(token)


class WordVector(NamedTuple):
    """The vector of a word.

    Attributes:
        word: the word.
        tokens: its token ids.
        symbols: their symbols.
        vector: the mean of the vectors of the tokens.
    """

    word: str
    tokens: list[int]
    symbols: list[str]
    vector: Float[Tensor, "d_model"]


class Neighbor(NamedTuple):
    """A token of the vocabulary, or a query word of several tokens.

    Attributes:
        symbol: symbol of the token, or the query word.
        token: token id; None for a query word of several tokens.
        score: cosine similarity to the target vector, or with 3CosMul the quotient.
        is_query: whether it is a query word or one of its tokens.
    """

    symbol: str
    token: int | None
    score: float
    is_query: bool


class Analogy(NamedTuple):
    """Result of an analogy, or of the search for neighbors.

    Attributes:
        positive: words that are added.
        negative: words that are subtracted.
        table: the embedding that was searched.
        included: highest scores with the query words among the candidates, best first.
        excluded: highest scores without them.
    """

    positive: list[WordVector]
    negative: list[WordVector]
    table: EmbeddingTable
    included: list[Neighbor]
    excluded: list[Neighbor]


def embedding_table(model: Any, side: Side | None = None, output: bool = False) -> EmbeddingTable:
    """Return the input or output embedding of a model.

    Args:
        model: a run loaded by ``transom.load``, or a model of texts.
        side: side of a translator; None where both sides share one embedding.
        output: return the output embedding, the matrix that maps the last hidden states to logits.

    Raises:
        ConfigError: the model reads no text, predicts no tokens although ``output`` is set, or has two vocabularies and ``side`` is None.
    """
    _, network = find_network(model, None)
    pair = hasattr(network, "source_embedding")
    if not pair and not hasattr(getattr(network, "embedding", None), "tokens"):
        raise ConfigError(
            f"expected a model of texts with token embeddings, found a model of kind {network.config.kind!r}; use another run"
        )
    if side is not None and not pair:
        raise ConfigError(f"side: expected none for a model with one vocabulary, found {side}; leave it out")
    predicts = isinstance(network, GenerativeModel | MaskedEncoderTransformer)
    if output and (side == "source" or not predicts):
        found = "the source side" if side == "source" else f"a model of kind {network.config.kind!r}"
        raise ConfigError(f"output: expected a model or side that predicts tokens, found {found}; read the input embedding instead")
    paths = {each: f"{each}_embedding.tokens" if pair else "embedding.tokens" for each in ("source", "target")}
    source, target = (network.get_parameter(f"{path}.weight") for path in paths.values())
    if side is None and not output and source is not target:
        raise ConfigError("side: expected source or target for a translator with an embedding per side, found none; give one of them")
    chosen = side or "target"
    weight = network.unembedding.weight if output else source if chosen == "source" else target
    n_tokens: int = getattr(network.config, f"{chosen}_vocab_size" if pair else "vocab_size")
    tied = predicts and network.unembedding.weight is (source if chosen == "source" else target)
    path = "unembedding" if output else paths[chosen]
    return EmbeddingTable(path, weight.detach()[:n_tokens].double(), tokenizer_of(model, chosen), tied)


def tokenizer_of(model: Any, side: str) -> Tokenizer | None:
    """Return the tokenizer of one side of a run; None for a model without one."""
    tokenizers = getattr(model, "tokenizers", None)
    found: Tokenizer | None = getattr(tokenizers, side) if tokenizers else getattr(model, "tokenizer", None)
    return found


def word_vector(table: EmbeddingTable, word: str | int) -> WordVector:
    """Return the vector of a word: the mean of the vectors of its tokens.

    Args:
        table: input or output embedding.
        word: a word, or the id of a token.

    Raises:
        ConfigError: the word is empty or unknown, or the token does not exist.
    """
    n_tokens = len(table.weight)
    if isinstance(word, int):
        if not 0 <= word < n_tokens:
            raise ConfigError(f"word: expected a token from 0 to {n_tokens - 1:,}, found {word}")
        tokens = [word]
    elif table.tokenizer is None:
        raise ConfigError(f"word: expected the id of a token for a model without a tokenizer, found {word!r}; load a run with transom.load")
    else:
        tokens = table.tokenizer.encode(word.strip())
        if not tokens:
            raise ConfigError("word: expected a word, found an empty text")
        if table.tokenizer.special_tokens.unk_token_id in tokens:
            raise ConfigError(f"word: expected a word of the vocabulary, found {word!r}; {_suggestion(table.tokenizer, word)}")
    symbols = table.symbols(tokens)
    return WordVector(str(word) if isinstance(word, str) else symbols[0], tokens, symbols, table.weight[tokens].mean(0))


def _suggestion(tokenizer: Tokenizer, word: str) -> str:
    """Suggest known words similar to an unknown one, or say that it contains an unknown character."""
    if tokenizer.kind == "char":
        unknown = [c for c in word if tokenizer.special_tokens.unk_token_id in tokenizer.encode(c)]
        return f"its characters {' '.join(dict.fromkeys(unknown))} are unknown"
    known = tokenizer.symbols(tokenizer.maskable)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else "choose a word of the training text"


def analogy(
    model: Any,
    positive: Sequence[str | int],
    negative: Sequence[str | int] = (),
    *,
    n: int = 10,
    method: Method = "add",
    side: Side | None = None,
    output: bool = False,
) -> Analogy:
    """Rank the tokens of the vocabulary by an analogy: for king - man + woman, king and woman are positive and man is negative.

    3CosAdd (Mikolov et al. 2013; with unit vectors): argmax_x cos(x, king - man + woman).
    3CosMul (Levy and Goldberg 2014): argmax_x cos(x, king) cos(x, woman) / (cos(x, man) + 0.001), each cosine shifted to
    (1 + cos) / 2.

    Articles usually leave the query words out, which hides that the nearest vector is often one of them. The result has both lists.

    Args:
        model: a run loaded by ``transom.load``, or a model without tokenizer, whose words are token ids.
        positive: words that are added.
        negative: words that are subtracted.
        n: number of tokens to return.
        method: "add" for 3CosAdd, "mul" for 3CosMul.
        side: source or target of a translator with two embeddings.
        output: search the output embedding.

    Raises:
        ConfigError: a word is unknown, or the model has no such embedding.
    """
    if not positive:
        raise ConfigError("positive: expected at least one word, found none")
    table = embedding_table(model, side, output)
    added, subtracted = ([word_vector(table, word) for word in words] for words in (positive, negative))
    queries = {token for each in (*added, *subtracted) for token in each.tokens}
    whole = {each.word: each.vector for each in (*added, *subtracted) if len(each.tokens) > 1}
    tokens = [token for token in range(len(table.weight)) if not table.is_special(token)]
    symbols = [*table.symbols(tokens), *whole]
    ids: list[int | None] = [*tokens, *(None for _ in whole)]
    candidates = F.normalize(torch.stack([*table.weight[tokens], *whole.values()]), dim=-1)
    units = [[F.normalize(each.vector, dim=0) for each in words] for words in (added, subtracted)]
    if method == "mul":
        up, down = (torch.stack([(1 + candidates @ unit) / 2 for unit in each]).prod(0) if each else None for each in units)
        assert up is not None
        scores = up if down is None else up / (down + EPSILON)
    else:
        scores = candidates @ F.normalize(sum(units[0], torch.zeros(())) - sum(units[1], torch.zeros(())), dim=0)
    order = scores.argsort(descending=True, stable=True).tolist()
    ranked = [Neighbor(symbols[i], ids[i], float(scores[i]), ids[i] is None or ids[i] in queries) for i in order]
    return Analogy(added, subtracted, table, ranked[:n], [each for each in ranked if not each.is_query][:n])


def neighbors(model: Any, word: str | int, *, n: int = 10, side: Side | None = None, output: bool = False) -> Analogy:
    """Rank the tokens of the vocabulary by cosine similarity to a word; arguments and errors as for ``analogy``."""
    return analogy(model, [word], n=n, side=side, output=output)
