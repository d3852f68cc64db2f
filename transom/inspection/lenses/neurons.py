"""Neurons of a feed-forward network as key-value memories (Geva et al. 2021): tokens that fire a neuron, and tokens that it promotes.

FFN(x) = f(x W_1) W_2 = sum_i f(x . k_i) v_i: the key k_i is a column of W_1, the value v_i a row of W_2 in this notation. In a gated
network the coefficient of v_i is f(x W_g)_i (x W_1)_i.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress
from transom.errors import ConfigError
from transom.inspection.activations import Activations, find_network, parent
from transom.inspection.lenses.readout import output_stack
from transom.layers.block import PostNormBlock, SandwichBlock
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.lora import LoraLinear
from transom.layers.mixture_of_depths import all_tokens, gather_selected
from transom.layers.mixture_of_experts import MixtureOfExperts, all_experts
from transom.layers.norm import BatchNorm, DynamicTanh, LayerNorm, Norm, RmsNorm
from transom.layers.observe import ActivationRecorder
from transom.layers.output_projection import logit_weights
from transom.layers.stack import Stack
from transom.models.base import LanguageModel, Network, SequencesLike
from transom.models.encoder import MaskedEncoderTransformer, TextClassifierTransformer
from transom.models.vision import VisionTransformer


class Firing(NamedTuple):
    """A token at which a neuron fires.

    Attributes:
        neuron: index of the hidden unit.
        value: its coefficient f(x . k_i), or with a gate f(x W_g)_i (x W_1)_i.
        batch: number of the batch.
        row: row of the batch.
        position: position of the token, or patch, in the row.
    """

    neuron: int
    value: float
    batch: int
    row: int
    position: int


def find_network_of_neurons(model: Any, block: int, stack: str | None = None, expert: int | None = None) -> tuple[str, Any]:
    """Return the path of a feed-forward network, and the network.

    Args:
        model: a run or model.
        block: index of the block.
        stack: "encoder" or "decoder"; None for the only one, or the one that leads to the logits.
        expert: index of an expert; None for networks without experts.

    Raises:
        ConfigError: the model has no such stack, block or expert, or the network is one of a plugin.
    """
    network = find_network(model, None)[1]
    name = stack or output_stack(network)
    module = getattr(network, name, None)
    if not isinstance(module, Stack):
        raise ConfigError(f"stack: expected a stack of blocks of the model, found {name!r}; choose the other one")
    if not 0 <= block < len(module.blocks):
        raise ConfigError(f"block: expected a number from 0 to {len(module.blocks) - 1} in the {name}, found {block}")
    path, ff = f"{name}.blocks.{block}.ff", module.blocks[block].ff
    if isinstance(ff, MixtureOfExperts):
        if expert is None or not 0 <= expert < len(ff.experts):
            raise ConfigError(f"expert: expected a number from 0 to {len(ff.experts) - 1} for {path}, found {expert}")
        path, ff = f"{path}.experts.{expert}", ff.experts[expert]
    elif expert is not None:
        raise ConfigError(f"expert: expected none for {path}, which has no experts, found {expert}")
    if not isinstance(ff, FeedForward | GatedFeedForward):
        raise ConfigError(f"{path}: expected a feed-forward network of transom, found {type(ff).__name__}; choose another block")
    return path, ff


def _module(network: Network, path: str) -> Any:
    """Return the module at a path."""
    return network.get_submodule(path)


def neuron_firings(
    model: Any,
    batches: Iterable[Any],
    path: str,
    neurons: Sequence[int] | None = None,
    *,
    top: int = 10,
    n_batches: int = 0,
    notify: ProgressCallback = ignore_progress,
) -> dict[int, list[Firing]]:
    """Return the tokens at which each neuron of a feed-forward network fires most, largest value first; padding excluded.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        batches: inputs.
        path: path of the network, as ``find_network_of_neurons`` returns it.
        neurons: indices of the neurons; None for all.
        top: number of tokens per neuron.
        n_batches: number of batches, for ``notify``.
        notify: progress callback, called with the number of batches done and of all batches.

    Raises:
        ConfigError: a neuron does not exist.
    """
    network = find_network(model, None)[1]
    n_neurons = _module(network, path).up.weight.shape[0]
    chosen = list(range(n_neurons)) if neurons is None else list(neurons)
    if bad := [each for each in chosen if not 0 <= each < n_neurons]:
        raise ConfigError(f"neurons: expected numbers from 0 to {n_neurons - 1} for {path}, found {bad[0]}")
    values, places = torch.empty(0, len(chosen)), torch.empty(0, len(chosen), 3, dtype=torch.long)
    for number, batch in enumerate(batches):
        hidden, at = _hidden(network, batch.to(network.device), path)
        own = torch.cat([torch.full((len(at), 1), number), at], 1)[:, None].expand(-1, len(chosen), -1)
        values, places = torch.cat([values, hidden[:, chosen]]), torch.cat([places, own])
        values, order = values.topk(min(top, len(values)), dim=0)
        places = places.gather(0, order[..., None].expand(-1, -1, 3))
        notify(number + 1, n_batches)
    return {
        neuron: [Firing(neuron, value, *place) for value, place in zip(values[:, i].tolist(), places[:, i].tolist(), strict=True)]
        for i, neuron in enumerate(chosen)
    }


def _hidden(network: Network, batch: Any, path: str) -> tuple[Float[Tensor, "tokens d_ff"], Int[Tensor, "tokens 2"]]:
    """Return the hidden units at all tokens that reach a network, on the CPU, and row and position of each token."""
    recorder = ActivationRecorder([f"{path}.hidden", "*.depth.score", "*.router"])
    with torch.no_grad(), eval_mode(network):
        network(batch, recorder)
        a = Activations(network, batch, recorder.activations)
        at = _places(a, path)
        hidden = a.get(f"{path}.hidden")
    if hidden is None:
        hidden = torch.empty(0, _module(network, path).up.weight.shape[0])
    hidden = hidden.flatten(0, -2)[: len(at)]
    real = at[:, 0] >= 0
    return hidden[real.to(hidden.device)].float().cpu(), at[real].cpu()


def _places(a: Activations, path: str) -> Int[Tensor, "tokens 2"]:
    """Return row and position of each token of a network's hidden units, -1 for padding."""
    block = path.partition(".ff")[0]
    (mask,) = a.model.token_masks(f"{block}.attn", a.batch)[:1]
    rows, positions = (x.to(mask.device) for x in torch.meshgrid(*(torch.arange(n) for n in mask.shape), indexing="ij"))
    at = torch.stack([rows, positions], -1).masked_fill(~mask[..., None], -1)
    router = a.module(block).depth
    if router is not None and router.path is not all_tokens:
        chosen = gather_selected(a[f"{block}.depth.selected"])
        at = at.gather(1, chosen.indices[..., None].expand(-1, -1, 2)).masked_fill(~chosen.valid[..., None], -1)
    at = at.flatten(0, 1)
    if ".experts." in path and a.module(moe := parent(parent(path))).path is not all_experts:
        at = at[(a[f"{moe}.chosen"].flatten(0, -2) == int(path.rpartition(".")[2])).any(-1)]
    return at


CONTEXT = 6
"""Tokens before and after the one at which a neuron fires, in a description."""


def describe_firing(run: Any, path: str, batches: Sequence[Any], firing: Firing) -> dict[str, Any]:
    """Return position, token and text of a firing; the token is in brackets.

    Args:
        run: a run loaded by ``transom.load``.
        path: path of the network.
        batches: the inputs.
        firing: the token.
    """
    batch, position = batches[firing.batch], firing.position
    if isinstance(find_network(run, None)[1], VisionTransformer):
        return {"position": position, "text": f"image {batch.sample_ids[firing.row]}, position {position}"}
    side = _sequences(find_network(run, None)[1], path, batch)
    tokenizers = getattr(run, "tokenizers", None)
    tokenizer = run.tokenizer if tokenizers is None else tokenizers.target if path.startswith("decoder.") else tokenizers.source
    row = side.tokens[firing.row][side.segments[firing.row] > 0].tolist()
    symbols = tokenizer.symbols(row)
    before, after = symbols[max(position - CONTEXT, 0) : position], symbols[position + 1 : position + 1 + CONTEXT]
    return {"position": position, "token": symbols[position], "text": " ".join([*before, f"[{symbols[position]}]", *after])}


def _sequences(network: Network, path: str, batch: Any) -> SequencesLike:
    """Return the tokens that the stack of a network reads."""
    decoder = isinstance(network, LanguageModel) or path.startswith("decoder.")
    sequences: SequencesLike = batch.decoder_input if decoder else batch.source
    return sequences


def promotes_tokens(model: Any, path: str) -> bool:
    """Return whether the output layer is a linear function of what a network writes, so that its neurons promote tokens."""
    network = find_network(model, None)[1]
    pooler = isinstance(network, TextClassifierTransformer) and network.pooler is not None
    pooler |= getattr(network.config, "n_pooled", 1) > 1
    return path.startswith(f"{output_stack(network)}.") and not pooler and not isinstance(network, MaskedEncoderTransformer)


class PromotedTokens(NamedTuple):
    """The logits that one unit of a neuron's coefficient adds, without those of later blocks and before any soft-cap.

    Attributes:
        promoted: indices of the symbols or classes with the largest logits, largest first.
        promoted_logits: their logits.
        suppressed: indices of those with the smallest logits, smallest first.
        suppressed_logits: their logits.
    """

    promoted: Int[Tensor, "neurons top"]
    promoted_logits: Float[Tensor, "neurons top"]
    suppressed: Int[Tensor, "neurons top"]
    suppressed_logits: Float[Tensor, "neurons top"]


def neuron_tokens(model: Any, path: str, neurons: Sequence[int], *, top: int = 10) -> PromotedTokens:
    """Return the tokens that a neuron's value v_i promotes and suppresses: W_U (gamma * v_i) (Geva et al. 2021, section 4; 2022).

    gamma is the weight of the final norm, in post-norm and sandwich blocks also of the norm after the network, and a layer norm subtracts
    the mean of v_i. The division by a norm's statistic, which depends on the token, is left out; later blocks are too.

    Args:
        model: a run loaded by ``transom.load``, or a model whose output layer is linear in the residual stream.
        path: path of the network in the stack that leads to the logits.
        neurons: indices of the neurons.
        top: number of promoted and of suppressed tokens.

    Raises:
        ConfigError: the network is in the encoder of a translator, or the output layer is not linear.
    """
    network = find_network(model, None)[1]
    if not promotes_tokens(network, path):
        raise ConfigError(f"{path}: expected a network before a linear output layer, found none; read the texts that fire its neurons")
    down = _module(network, path).down
    weight = down.merged_weight(down.weight, down.lora_a, down.lora_b) if isinstance(down, LoraLinear) else down.weight
    v = weight[:, list(neurons)].T
    for norm in _following_norms(network, path):
        if isinstance(norm, LayerNorm):
            v = v - v.mean(-1, keepdim=True)
        if isinstance(norm, BatchNorm):
            v = v * (norm.variance + norm.eps).rsqrt()
        if isinstance(norm, LayerNorm | RmsNorm | BatchNorm | DynamicTanh):
            v = v * norm.weight
    logits = (v @ logit_weights(network.unembedding)[0].T).detach()
    largest, smallest = (logits.topk(min(top, logits.shape[1]), largest=each) for each in (True, False))
    return PromotedTokens(largest.indices, largest.values, smallest.indices, smallest.values)


def _following_norms(network: Network, path: str) -> list[Norm]:
    """Return the norms between a feed-forward network and the output layer, those of later blocks left out."""
    stack, block = _module(network, output_stack(network)), _module(network, path.partition(".ff")[0])
    own = None
    if isinstance(block, PostNormBlock):
        own = block.ff_residual.norm
    elif isinstance(block, SandwichBlock):
        own = block.ff_residual.norm_out
    return [norm for norm in (own, stack.norm) if isinstance(norm, Norm)]
