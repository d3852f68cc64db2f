"""The map from the residual stream to the logits: final norm, pooling and output layer, as a function of any stream."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.errors import ConfigError
from transom.files.message import phrase
from transom.inspection.activations import Activations, find_network, sequences_of, stream_after
from transom.inspection.example_batch import build_example_batch
from transom.inspection.trace import trace
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer, TextEmbedderTransformer, mean_pool
from transom.models.vision import VisionTransformer

MAX_LOGITS = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""

Stream = Float[Tensor, "batch length d_model"]


class LensInput(NamedTuple):
    """A model, and an input of it.

    Attributes:
        network: the model, not compiled.
        batch: the input.
        notes: notes for the user on the input.
    """

    network: Network
    batch: Any
    notes: list[str]


def lens_input(model: Any, inputs: Any) -> LensInput:
    """Return the network in a run or model, and the batch of a text, batch or tensor.

    Raises:
        ConfigError: the model has no residual stream that leads to logits per token, text or image.
        DataError: a text exceeds the context window.
    """
    _, network = find_network(model, inputs)
    output_stack(network)
    if isinstance(inputs, str):
        example = build_example_batch(model, inputs, None, "refuse")
        return LensInput(network, example.batch, example.notes)
    return LensInput(network, network.as_batch(inputs), [])


def output_stack(network: Network) -> str:
    """Return the name of the stack whose residual stream leads to the logits, "decoder" or "encoder".

    Raises:
        ConfigError: there is none: the model is recurrent or convolutional, or its logits belong to pairs of texts.
    """
    for name in ("decoder", "encoder"):
        if isinstance(getattr(network, name, None), Stack) and not isinstance(network, TextEmbedderTransformer):
            return name
    raise ConfigError(
        phrase(
            "errors.no_stack",
            "expected a Transformer with logits per token, text or image, found a model of kind {kind}; give another run",
            kind=repr(network.config.kind),
        )
    )


def is_pooled(network: Network) -> bool:
    """Return whether the logits belong to a whole text or image instead of a token."""
    return isinstance(network, TextClassifierTransformer | VisionTransformer)


def read_out(network: Any, batch: Any, stream: Stream) -> Float[Tensor, "batch positions vocab"]:
    """Compute the logits that follow from a residual stream after the last block: W_U Norm(x), with the model's own modules.

    A masked language model has a further layer before W_U, a classifier of texts a pooler; ``positions`` is 1 where the model pools.

    Args:
        network: a model with a residual stream.
        batch: the input, whose padding is not pooled.
        stream: the stream of all positions of the batch, or of some where the model does not pool.
    """
    stack: Stack = getattr(network, output_stack(network))
    x = stream if stack.norm is None else stack.norm(stream)
    if isinstance(network, MaskedEncoderTransformer):
        x = network.transform_norm(network.activation(network.transform(x)))
    elif is_pooled(network):
        if network.config.pooling == "cls":
            x = x[:, : getattr(network.config, "n_pooled", 1)].flatten(1)[:, None]
        elif isinstance(network, VisionTransformer):
            x = x.mean(1, keepdim=True)
        else:
            x = mean_pool(x, batch.source).to(x)[:, None]
        x = network.apply_pooler(x) if isinstance(network, TextClassifierTransformer) else x
    logits: Tensor = network.unembedding(x)
    return logits


def record_streams(network: Network, batch: Any) -> tuple[Tensor, Activations]:
    """Run a model, and return its logits and the activations from which the residual stream after every block follows."""
    stack = output_stack(network)
    logits, found = trace(network, batch, [f"{stack}.blocks.*.resid_post"], store="residuals")
    return logits, found.activations


def stream_names(network: Network) -> list[str]:
    """Return the names of the streams: "embedding", then the path of each block of the output stack."""
    stack = output_stack(network)
    return ["embedding", *(f"{stack}.blocks.{i}" for i in range(len(getattr(network, stack).blocks)))]


def streams(a: Activations) -> Iterator[tuple[str, Stream]]:
    """Yield name and value of the residual stream: the embedded input, then the stream after each block."""
    stack = output_stack(a.model)
    for n_blocks, name in enumerate(stream_names(a.model)):
        yield name, stream_after(a, stack, n_blocks)


def token_mask(a: Activations) -> Tensor:
    """Return True at the positions that have logits and are not padding, (batch, positions); pooled models have one position."""
    if is_pooled(a.model):
        return torch.ones(len(a["logits"]), 1, dtype=torch.bool, device=a.model.device)
    return sequences_of(a, output_stack(a.model)).segments > 0


def output_symbols(model: Any) -> Callable[[int], str]:
    """Return the function that names a logit: its class, its token where the run has a tokenizer, or its index."""
    given, _ = find_network(model, None)
    classes = getattr(given.config, "classes", None)
    tokenizers = getattr(model, "tokenizers", None)
    tokenizer = tokenizers.target if tokenizers else getattr(model, "tokenizer", None)
    if classes:
        return lambda index: str(classes[index])
    if tokenizer is None:
        return str
    return lambda index: str(tokenizer.symbols([index])[0])


def flat_logits(logits: Tensor) -> Float[Tensor, "batch positions vocab"]:
    """Return logits with an axis of positions, of size 1 where there is one row of logits per text or image."""
    return logits[:, None] if logits.ndim == 2 else logits


def log_probs(network: Network, logits: Tensor) -> Tensor:
    """Return log-probabilities: log-softmax, or the logarithm of the sigmoid for texts with several labels, in float32 or wider."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.logsigmoid(wide) if getattr(network.config, "multi_label", False) else wide.log_softmax(-1)


def divergence(network: Network, own: Tensor, implied: Tensor) -> Float[Tensor, "*positions"]:
    """Return the Kullback-Leibler divergence KL(own || implied) in nats of the distributions of two logits, (*positions, vocab).

    With several labels per text it is the sum over the labels.
    """
    p, q = log_probs(network, own), log_probs(network, implied)
    kl = (p.exp() * (p - q)).nan_to_num(0.0).sum(-1)  # 0 * infinity where a logit is minus infinity
    if not getattr(network.config, "multi_label", False):
        return kl
    not_p, not_q = log_probs(network, -own), log_probs(network, -implied)
    return kl + (not_p.exp() * (not_p - not_q)).nan_to_num(0.0).sum(-1)


def require_one_row(batch_size: int) -> None:
    """Raise unless a batch has one row.

    Raises:
        ConfigError: it has several.
    """
    if batch_size != 1:
        raise ConfigError(f"inputs: expected one text or image, found {batch_size}; give one at a time")
