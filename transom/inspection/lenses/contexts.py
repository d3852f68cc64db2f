"""Similarity of the vectors of one word in different contexts, after each block: static against contextual embeddings."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError
from transom.inspection.activations import find_network, sequences_of, stream_after
from transom.inspection.lenses.embeddings import Side, embedding_table
from transom.inspection.trace import trace


class Occurrence(NamedTuple):
    """A word in a text.

    Attributes:
        text: index of the text.
        start: index of its first token in the text, without special tokens.
        tokens: token ids of the word.
        symbols: their symbols.
    """

    text: int
    start: int
    tokens: list[int]
    symbols: list[str]


class ContextualSimilarity(NamedTuple):
    """Cosine similarity between the vectors of a word in several contexts; the vector of several tokens is their mean.

    Attributes:
        word: the word.
        texts: the texts that contain it: those that were given, or their translations.
        occurrences: its occurrences, by text and position.
        layers: names of the rows: "static", the embedding without position; "embedding", the residual stream before the first block; and
            the blocks, or layers of a recurrent model, after which the vectors are read.
        cosines: cosine similarity of each pair of occurrences, from -1 to 1.
        self_similarity: mean over all pairs of occurrences (Ethayarajh 2019, definition 1).
        anisotropy: mean cosine similarity of two different tokens of the texts, the word left out; NaN if there are no two.
            Ethayarajh 2019 samples tokens from a corpus instead.
    """

    word: str
    texts: list[str]
    occurrences: list[Occurrence]
    layers: list[str]
    cosines: Float[Tensor, "layers occurrences occurrences"]
    self_similarity: Float[Tensor, "layers"]
    anisotropy: Float[Tensor, "layers"]

    @property
    def adjusted(self) -> Float[Tensor, "layers"]:
        """Self-similarity minus anisotropy: how much more alike the occurrences are than any two tokens."""
        return self.self_similarity - self.anisotropy


def contextual_similarity(
    model: Any, texts: Sequence[str], word: str, side: Side = "source", targets: Sequence[str] | None = None
) -> ContextualSimilarity:
    """Compare the vectors of a word between its occurrences: before the first block, and after each block.

    All occurrences of the word in all texts count, so that one text with the word twice is enough. Of a translator the encoder is read, or
    the decoder, in which a vector depends on the source and on the translation before the word. In a language model it depends on the text
    before the word only, so what distinguishes the meanings must come first.

    Args:
        model: a run of texts, loaded by ``transom.load``.
        texts: texts that contain the word as a whole; with ``side`` "target" their translations contain it.
        word: the word, which may have several tokens.
        side: "target" for a translator's decoder.
        targets: translation of each text; None for the model's own.

    Raises:
        ConfigError: the model is no run of texts, or no translator although ``side`` is "target", or the number of targets is another.
        DataError: a text does not contain the word, there is only one occurrence, or a text exceeds the context window.
    """
    _, network = find_network(model, word)
    table = embedding_table(model, side if hasattr(network, "source_embedding") or side == "target" else None)
    assert table.tokenizer is not None
    sources = list(texts)
    if side == "target":
        texts = model.translate(sources) if targets is None else targets
    if len(texts) != len(sources) or (targets is not None and side == "source"):
        raise ConfigError(
            f"targets: expected a translation of each of {len(sources)} texts, on the side target, found {len(targets or ())}"
        )
    found, others = list[Occurrence](), list[int]()
    vectors, other_vectors = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    for number, text in enumerate(texts):
        spans, tokens = find_word(table.tokenizer, text, word), table.tokenizer.encode(text)
        if not spans:
            raise DataError(f"text {number + 1}: expected the word {word!r}, found none in {text!r:.80}; give texts that contain it")
        streams = _residual_streams(model, sources[number], tokens, side)
        by_layer = {"static": table.weight[tokens], **streams}
        for span in spans:
            own = tokens[span.start : span.stop]
            found.append(Occurrence(number, span.start, own, table.symbols(own)))
        rest = [i for i in range(len(tokens)) if not any(i in span for span in spans)]
        others += [tokens[i] for i in rest]
        for layer, x in by_layer.items():
            vectors[layer] += [x[span.start : span.stop].mean(0) for span in spans]
            other_vectors[layer].append(x[rest])
    if len(found) < 2:
        raise DataError(f"texts: expected two occurrences of {word!r} to compare, found {len(found)}; give another text")
    cosines = torch.stack([_cosines(torch.stack(each)) for each in vectors.values()])
    first, second = torch.triu_indices(len(found), len(found), 1)
    ids = torch.tensor(others, device=cosines.device)
    anisotropy = torch.stack([_cosines(torch.cat(each))[ids[:, None] != ids].mean() for each in other_vectors.values()])
    return ContextualSimilarity(word, list(texts), found, list(vectors), cosines, cosines[:, first, second].mean(-1), anisotropy)


def find_word(tokenizer: Tokenizer, text: str, word: str) -> list[range]:
    """Return the token positions of each occurrence of a whole word in the tokens of a text, without special tokens.

    Args:
        tokenizer: tokenizer of the text; upper and lower case are alike if it converts texts to lower case.
        text: the text.
        word: the word. With a tokenizer of whitespace-separated words it must have whitespace around it.
    """
    before, after = (r"(?<!\S)", r"(?!\S)") if tokenizer.kind == "whitespace" else (r"(?<!\w)", r"(?!\w)")
    tokens, found = tokenizer.encode(text), list[range]()
    if not word.strip():
        raise ConfigError("word: expected a word, found an empty text")
    for match in re.finditer(before + re.escape(word.strip()) + after, text, re.IGNORECASE if tokenizer.lowercase else 0):
        start, end = match.span()
        start -= tokenizer.spaces_in_tokens and text[:start].endswith(" ")  # a token contains the space before it
        first, last = (tokenizer.count_part_tokens([text[:at], text[at:]], tokens)[0] if at else 0 for at in (start, end))
        found.append(range(first, last))
    return found


def _residual_streams(run: Any, text: str, tokens: Sequence[int], side: Side) -> dict[str, Tensor]:
    """Return the residual stream of some tokens in float64, (tokens, d_model), by layer.

    Args:
        run: the run.
        text: the text, or the source of the tokens.
        tokens: tokens of the text, or with ``side`` "target" those of its translation.
        side: side that is read.
    """
    stack = "encoder" if hasattr(run.model, "encoder") and side == "source" else "decoder"
    module, own = run.model.get_submodule(stack), f"{side}_embedding" if hasattr(run.model, "source_embedding") else "embedding"
    inputs: Any = text
    if side == "target":
        source, sides = run.encode(text), (run.tokenizers.source, run.tokenizers.target)
        most = run.model.config.max_seq_len - max(each.special_tokens.n_added for each in sides)
        if max(len(source), len(tokens)) > most:
            raise DataError(f"expected a source and target of at most {most} tokens, found {len(source)} and {len(tokens)}; shorten them")
        inputs = run.build_batch(source, tokens).to(run.model.device)
    blocks = [f"{stack}.blocks.{i}" for i in range(len(getattr(module, "blocks", ())))]
    layers = [f"{stack}.layers.{i}" for i in range(len(getattr(module, "layers", ())))]  # of a recurrent model
    names = [
        f"{own}.resid",
        *(f"{path}.{name}" for path in blocks for name in ("resid_pre", "resid_post")),
        *(f"{path}.h" for path in layers),
    ]
    a = trace(run, inputs, names)[1].activations
    found = {"embedding": a[f"{own}.resid"], **{path: stream_after(a, stack, i) for i, path in enumerate(blocks, 1)}}
    found |= {path: a[f"{path}.h"] for path in layers}
    row = sequences_of(a, stack).tokens[0].tolist()
    start = next(i for i in range(len(row)) if row[i : i + len(tokens)] == tokens)  # special tokens precede a text
    return {layer: x[0, start : start + len(tokens)].double() for layer, x in found.items()}


def _cosines(vectors: Tensor) -> Tensor:
    """Return the cosine similarity of all pairs of vectors."""
    unit = F.normalize(vectors, dim=-1)
    return unit @ unit.mT
