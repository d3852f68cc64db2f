"""Quantities of embeddings, norms, feed-forward networks, experts and output layers that follow from sites."""

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.inspection.activations import Activations, feed_forward_input, sequences_of, stack_output
from transom.layers.mixture_of_experts import Routing
from transom.layers.norm import BatchNorm, LayerNorm, RmsNorm
from transom.layers.vision.patch_embedding import patchify
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer, TextEmbedderTransformer, first_states, mean_pool
from transom.models.vision import ConvolutionalNetwork, VisionTransformer


def token_embedding(a: Activations, path: str) -> Tensor:
    """Look up the token embeddings, times sqrt(d_model) if the model scales them."""
    module = a.module(path)
    result: Tensor = module.tokens(sequences_of(a, path).tokens) * module.scale
    return result


def position_embedding(a: Activations, path: str) -> Tensor | None:
    """Return the vectors that the position encoding adds; None if it acts in attention."""
    result: Tensor | None = a.module(path).position(sequences_of(a, path).positions)
    return result


def token_type_embedding(a: Activations, path: str) -> Tensor | None:
    """Look up the token type embeddings; None without token types."""
    module, sequences = a.module(path), sequences_of(a, path)
    return None if module.token_types is None else module.embed_types(sequences.tokens, getattr(sequences, "token_types", None))


def embedding_sum(a: Activations, path: str) -> Tensor:
    """Add the embeddings of tokens, positions and token types."""
    x, p, t = a[f"{path}.token"], position_embedding(a, path), token_type_embedding(a, path)
    x = x if p is None else x + p
    return x if t is None else x + t


def patches(a: Activations, path: str) -> Tensor:
    """Cut the normalized image, or the stem's feature map, into flattened patches."""
    module = a.module(path)
    n_stages = len(module.stem.stages)
    x = a[f"{path}.stem.stages.{n_stages - 1}"] if n_stages else module.pixels(a.batch.pixels)
    return patchify(x, module.patch_size)


def patch_embedding(a: Activations, path: str) -> Tensor:
    """Project the patches to d_model."""
    result: Tensor = a.module(path).projection(a[f"{path}.patches"])
    return result


def class_token(a: Activations, path: str) -> Tensor | None:
    """Return the class token of each image; None without one."""
    cls: Tensor | None = a.module(path).cls
    return None if cls is None else cls.expand(len(a.batch.pixels), 1, -1)


def distillation_token(a: Activations, path: str) -> Tensor | None:
    """Return the distillation token of each image; None without one."""
    token: Tensor | None = a.module(path).distillation
    return None if token is None else token.expand(len(a.batch.pixels), 1, -1)


def patch_positions(a: Activations, path: str) -> Tensor | None:
    """Return the vectors that are added to class token and patches; None without them."""
    module = a.module(path)
    result: Tensor | None = module.position(torch.arange(a[f"{path}.resid"].shape[1], device=a.model.device)[None])
    return result


def norm_mean(a: Activations, path: str) -> Tensor:
    """Return the mean that a norm subtracts: of each vector, or in batch norm the running mean of each feature."""
    module = a.module(path)
    return module.mean if isinstance(module, BatchNorm) else _wide(a[f"{path}.x"]).mean(-1)


def norm_variance(a: Activations, path: str) -> Tensor:
    """Return the biased variance of each vector, or in batch norm the running variance of each feature."""
    module = a.module(path)
    return module.variance if isinstance(module, BatchNorm) else _wide(a[f"{path}.x"]).var(-1, correction=0)


def norm_mean_square(a: Activations, path: str) -> Tensor:
    """Return the mean square of each vector, by whose root RMSNorm divides."""
    return _wide(a[f"{path}.x"]).square().mean(-1)


def norm_scale(a: Activations, path: str) -> Tensor:
    """Return the square root by which a norm divides."""
    module = a.module(path)
    square: Tensor = norm_mean_square(a, path) if isinstance(module, RmsNorm) else norm_variance(a, path)
    return (square + module.eps).sqrt()


def norm_normalized(a: Activations, path: str) -> Tensor:
    """Return the normalized vectors, before gamma and beta."""
    module = a.module(path)
    x = _wide(a[f"{path}.x"])
    if isinstance(module, LayerNorm):
        return (x - a[f"{path}.mean"][..., None]) * (a[f"{path}.variance"][..., None] + module.eps).rsqrt()
    if isinstance(module, RmsNorm):
        return x * (a[f"{path}.mean_square"][..., None] + module.eps).rsqrt()
    if isinstance(module, BatchNorm):
        return (x - a[f"{path}.mean"]) * (a[f"{path}.variance"] + module.eps).rsqrt()
    return torch.tanh(module.alpha * x)


def norm_out(a: Activations, path: str) -> Tensor:
    """Compute the output of the norm with the layer's own function."""
    result: Tensor = a.module(path)(a[f"{path}.x"])
    return result


def _wide(x: Tensor) -> Tensor:
    """Return ``x`` in float32 or wider, in which statistics are computed."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def up(a: Activations, path: str) -> Tensor:
    """Compute X W_1 + b_1: the pre-activation of a plain network, the second factor of a gated one."""
    result: Tensor = a.module(path).up(feed_forward_input(a, path))
    return result


def gate_pre(a: Activations, path: str) -> Tensor:
    """Compute X W_g, the pre-activation of the gate."""
    result: Tensor = a.module(path).gate(feed_forward_input(a, path))
    return result


def gate(a: Activations, path: str) -> Tensor:
    """Compute the gate f(X W_g)."""
    result: Tensor = a.module(path).activation(a[f"{path}.pre"])
    return result


def down(a: Activations, path: str) -> Tensor:
    """Compute the output of a feed-forward network from its hidden units."""
    result: Tensor = a.module(path).down(a[f"{path}.hidden"])
    return result


def routing(a: Activations, path: str) -> Routing:
    """Return the experts of each token and their gates."""
    result: Routing = a.module(path).route(a[f"{path}.router"])
    return result


def router_probs(a: Activations, path: str) -> Tensor:
    """Compute the probability of each expert."""
    result: Tensor = a.module(path).router_probs(a[f"{path}.router"])
    return result


def chosen_experts(a: Activations, path: str) -> Tensor:
    """Return the indices of the experts of each token, best first."""
    return routing(a, path).experts.unflatten(0, a[f"{path}.router"].shape[:-1])


def expert_gates(a: Activations, path: str) -> Tensor:
    """Return the gates of the chosen experts."""
    return routing(a, path).weights.unflatten(0, a[f"{path}.router"].shape[:-1])


def experts_out(a: Activations, path: str) -> Tensor:
    """Compute the gated sum of the experts' outputs, by running the layer again."""
    result: Tensor = a.module(path)(feed_forward_input(a, path))
    return result


def pooled(a: Activations, path: str) -> Tensor | None:
    """Return the pooled vector of each text, for models without a site for it."""
    if not isinstance(a.model, TextEmbedderTransformer):
        return None
    states = stack_output(a, "encoder")
    return first_states(states, a.batch.source) if a.model.config.pooling == "cls" else mean_pool(states, a.batch.source)


def last_hidden(a: Activations, path: str) -> Tensor:
    """Return the last hidden states, which the output projection maps to logits."""
    model = a.model
    if isinstance(model, MaskedEncoderTransformer):
        return a["transform_norm.out"]
    if isinstance(model, TextClassifierTransformer):
        return model.apply_pooler(a["pooled"])
    if isinstance(model, TextEmbedderTransformer):
        return F.normalize(a["pooled"], dim=-1)
    if isinstance(model, VisionTransformer):
        return a["pooled"]
    if isinstance(model, ConvolutionalNetwork):
        return F.relu(model.pooler(a["pooled"]))
    return a["decoder.out" if hasattr(model, "decoder") else "encoder.out"]


def probs(a: Activations, path: str) -> Tensor:
    """Compute the probabilities: the softmax of the logits, or their sigmoid for texts with several labels."""
    logits = _wide(a["logits"]) / a.temperature
    return logits.sigmoid() if getattr(a.model.config, "multi_label", False) else logits.softmax(-1)


def log_probs(a: Activations, path: str) -> Tensor:
    """Compute the natural logarithms of the probabilities."""
    logits = _wide(a["logits"]) / a.temperature
    return F.logsigmoid(logits) if getattr(a.model.config, "multi_label", False) else logits.log_softmax(-1)
