"""Descriptions of a pass for the page: tokens, layers, quantities, answer and certificates, as JSON-serializable data."""

from collections.abc import Mapping, Sequence
from typing import Any

from transom.config.vision import VisionTransformerConfig
from transom.decoding.predictors.generator import Generator
from transom.inspection.activations import tokenizer_of
from transom.inspection.derive_attention import is_exact
from transom.inspection.names import NamedQuantity, description
from transom.inspection.trace import CLASS_TOKENS, axes_of, names_of, token_symbols
from transom.serving.passes import Pass, attention_layers, is_whole, recurrent_attention
from transom.serving.served_model import ModelInput, ServedModel
from transom.serving.tiles import SIZE


def describe_pass(found: Pass) -> dict[str, Any]:
    """Return tokens, attention layers, idle quantities and answer of a pass as JSON-serializable data."""
    model, a = found.model, found.trace.activations
    tokens = describe_tokens(model, found.input.batch)["tokens"]
    layers = [_layer(found, path, tokens) for path in attention_layers(model) if not found.whole or a.get(f"{path}.q") is not None]
    layers += [_recurrent_layer(path, tokens) for path in recurrent_attention(model)] if found.whole else []
    positions = list(range(len(found.flat_logits))) if found.logits.ndim == 3 else [0]
    answer = list(found.input.positions) or positions
    default = answer[-2] if model.input_kind == "pair" and len(answer) > 1 else answer[0] if len(answer) > 1 else answer[-1]
    if not found.input.answer:
        default = answer[-1] if found.input.positions else positions[-1]
    return {
        **describe_tokens(model, found.input.batch),
        "flipped": model.input_kind == "sound",
        "layers": layers,
        "idle": found.trace.idle,
        "outputs": {
            "positions": positions,
            "per_token": found.logits.ndim == 3,
            "stack": "decoder" if "decoder" in tokens else "encoder",
            "default": default,
        },
        "answer": _answer(found),
        "notes": list(found.input.notes),
        "fired": list(found.fired),
        "whole": found.whole,
        "tile": SIZE,
    }


def describe_quantities(model: ServedModel, given: ModelInput) -> list[dict[str, Any]]:
    """Return the quantities of all passes of an input as JSON-serializable data; a pass says which of them it lacks."""
    tokens, whole = _tokens(model, given.batch), is_whole(model, given)
    return [_quantity(each, tokens) for each in names_of(model.network.config) if whole or each.address == "logits"]


def describe_certificates(found: Pass) -> dict[str, Any]:
    """Return the comparison of the maps with the kernel's head outputs, by layer, as JSON-serializable data.

    Raises:
        CertificationError: attention weights do not give the head outputs that the kernel computed.
    """
    certificates = [found.certificate(path) for path in found.certifiable]
    return {each.address: {"ratio": each.ratio, "logsumexp": each.with_logsumexp} for each in certificates}


def _answer(found: Pass) -> str:
    """Return the model's answer; of a language model the most probable next token, with the edits of the pass."""
    if not isinstance(found.model.run, Generator):
        return found.input.answer
    symbols = found.model.run.tokenizer.symbols([int(found.flat_logits[-1].argmax())])
    return symbols[0].replace("\N{LOWER ONE EIGHTH BLOCK}", " ")


def describe_tokens(model: ServedModel, batch: Any) -> dict[str, Any]:
    """Return the tokens of a batch of one row by stack, and its picture with the number of patches per side, as JSON-serializable data."""
    config = model.network.config
    n_class = config.n_positions - config.grid**2 if isinstance(config, VisionTransformerConfig) else 0
    grid = config.grid if isinstance(config, VisionTransformerConfig) else None
    return {"tokens": _tokens(model, batch), "grid": grid, "n_class_tokens": n_class, "image": model.picture(batch)}


def _tokens(model: ServedModel, batch: Any) -> dict[str, list[dict[str, Any]]]:
    """Return text, id and position of the tokens of each stack."""
    config, listed = model.network.config, dict[str, list[dict[str, Any]]]()
    if isinstance(config, VisionTransformerConfig):
        n_class = config.n_positions - config.grid**2
        texts = [*CLASS_TOKENS[:n_class], *(f"{i // config.grid},{i % config.grid}" for i in range(config.grid**2))]
        return {"encoder": [{"text": text, "id": None, "position": i, "special": i < n_class} for i, text in enumerate(texts)]}
    symbols = token_symbols(model.run, batch)
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if hasattr(model.network, stack):
            ids = (batch.source if stack == "encoder" else batch.decoder_input).tokens[0].tolist()
            texts = symbols.get(side) or [str(each) for each in ids]
            tokenizer = tokenizer_of(model.run, side)
            listed[stack] = [
                {"text": text, "id": token, "position": i, "special": tokenizer is not None and token in tokenizer.special_tokens.ids}
                for i, (token, text) in enumerate(zip(ids, texts, strict=True))
            ]
    return listed


def _layer(found: Pass, path: str, tokens: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return an attention layer with the shape of its maps and its certificate."""
    module, a = found.model.network.get_submodule(path), found.trace.activations
    stack, _, rest = path.partition(".blocks.")
    block, _, part = rest.partition(".")
    keys = "encoder" if part == "cross" else stack
    return {
        "address": path,
        "stack": stack,
        "block": int(block),
        "part": part,
        "n_heads": module.n_heads,
        "shape": [a[f"{path}.{name}"].shape[2] for name in "qk"] if found.whole else [len(tokens[stack]), len(tokens[keys])],
        "queries": stack,
        "keys": keys,
        "exact": is_exact(module),
        "switchable": True,
    }


def _recurrent_layer(path: str, tokens: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the attention of a recurrent decoder over the source, which has no queries of a block."""
    return {
        "address": path,
        "stack": "decoder",
        "block": None,
        "part": "cross",
        "n_heads": 1,
        "shape": [len(tokens["decoder"]), len(tokens["encoder"])],
        "queries": "decoder",
        "keys": "encoder",
        "exact": True,
        "switchable": False,
    }


def _quantity(each: NamedQuantity, tokens: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a row of the vocabulary with the sizes that the input fixes; None for a size that only the quantity itself has."""
    stack, _, rest = each.address.partition(".blocks.")
    block = rest.partition(".")[0]
    stack = {"source_embedding": "encoder", "target_embedding": "decoder"}.get(stack.partition(".")[0], stack.partition(".")[0])
    stack = stack if stack in tokens else list(tokens)[-1] if tokens else ""
    keys = "encoder" if ".cross." in each.address else stack
    sizes = {"query": len(tokens.get(stack, ())), "key": len(tokens.get(keys, ())), "tokens": None}
    axes = axes_of(each.quantity.axes, len(each.shape), each.address)
    shape = [sizes.get(axis, size) if tokens else size for axis, size in zip(axes, each.shape, strict=True)]
    row = each.quantity
    return {
        "address": each.address,
        "name": each.address.rpartition(".")[2] if "." in each.address else each.address,
        "symbol": row.symbol,
        "formula": description(row),
        "axes": [axis for axis in axes if axis != "batch"],
        "shape": [size for axis, size in zip(axes, shape, strict=True) if axis != "batch"],
        "cost": each.cost,
        "stack": stack or None,
        "block": int(block) if block else None,
        "alias": each.alias,
    }
