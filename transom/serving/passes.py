"""Forward passes that a page asks about, the latest of which stay in memory."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from transom.errors import ConfigError, DataError
from transom.files.message import phrase
from transom.inspection.attention_map import AttentionMap, attention_map, select_head
from transom.inspection.certify import Certificate, certify
from transom.inspection.derive_attention import is_exact
from transom.inspection.edits.changes import AttentionEdit
from transom.inspection.edits.scope import edits as edit_scope
from transom.inspection.retrace import retrace
from transom.inspection.trace import Trace, map_owners, trace
from transom.layers.attention import Attention
from transom.layers.recurrent.recurrent_decoder import SourceAttention
from transom.serving.requests import PassRequest
from transom.serving.served_model import ModelInput, ServedModel
from transom.serving.tiles import StoredMap, TiledMap

MAX_BYTES = 2**30
"""Bytes of a pass, of which every site is kept."""

MAX_CERTIFIED = 2048
"""Queries up to which the maps of all heads are certified with the pass; beyond, those that are drawn."""


@dataclass(frozen=True)
class Pass:
    """One forward pass of a model.

    Attributes:
        model: the model.
        input: its input.
        trace: all quantities of the pass.
        logits: the logits.
        fired: number of tensors that each edit changed.
        whole: whether every site was kept; of long texts only the logits and the maps, tile by tile, can be read.
    """

    model: ServedModel
    input: ModelInput
    trace: Trace
    logits: Tensor
    fired: Sequence[int]
    whole: bool
    _certificates: dict[str, Certificate] = field(default_factory=dict, compare=False)

    @cached_property
    def certifiable(self) -> list[str]:
        """Addresses of the attention layers whose maps can be certified; edited layers and long texts are left out."""
        if not self.whole or estimate_bytes(self.model, self.input)[1] > MAX_CERTIFIED:
            return []
        return [path for path in map_owners(self.trace.quantities) if path not in self.trace.edited]

    def certificate(self, attention: str) -> Certificate:
        """Compare the maps of a certifiable layer with the kernel's head outputs, once.

        Raises:
            CertificationError: attention weights do not give the head outputs that the kernel computed.
        """
        if attention not in self._certificates:
            self._certificates[attention] = certify(self.trace.activations, attention)
        self._certificates[attention].check()
        return self._certificates[attention]

    def require_certified_maps(self, of: str) -> None:
        """Raise if a quantity belongs to an attention layer whose maps are not those that the model used.

        Args:
            of: address of the quantity.

        Raises:
            CertificationError: attention weights do not give the head outputs that the kernel computed.
        """
        if (owner := of.rpartition(".")[0]) in self.certifiable:
            self.certificate(owner)

    def certificates_of_kept_layers(self, other: Trace) -> dict[str, Certificate]:
        """Return the certificates so far of layers whose queries, keys, values and outputs another trace keeps."""
        own, others = self.trace.activations.recorded, other.activations.recorded
        return {
            path: each for path, each in self._certificates.items() if all(own[at] is others[at] for at in (f"{path}.{x}" for x in "qkvz"))
        }

    @property
    def flat_logits(self) -> Tensor:
        """Logits of the row, (positions, symbols); one position where a text or picture has one answer."""
        return self.logits[0] if self.logits.ndim == 3 else self.logits


def run_pass(model: ServedModel, given: ModelInput, request: PassRequest, references: Mapping[str, Any], plain: Pass | None = None) -> Pass:
    """Run a model with the edits of a request; the input, and the batches from which edits take values, were built without them.

    Args:
        model: the model.
        given: its input.
        request: the edits.
        references: batch by name, from which edits take values.
        plain: the pass without edits, of which the blocks before the first edited one are kept; None to run all blocks.

    Raises:
        ConfigError: the model has no such block, head or position.
        EditNeverFiredError: an edit changed nothing.
    """
    whole = is_whole(model, given)
    scope = edit_scope(model.run, request.edits, inputs=references) if request.edits else None
    with scope or nullcontext():
        if plain is not None and plain.whole:
            logits, found = retrace(model.run, plain.trace)
        else:
            logits, found = trace(model.run, given.batch, ["*"] if whole else ["logits"], store="all" if whole else "needed")
        fired = scope.fired if scope is not None else ()
    return Pass(model, given, found, logits, fired, whole, {} if plain is None else plain.certificates_of_kept_layers(found))


def is_whole(model: ServedModel, given: ModelInput) -> bool:
    """Return whether all sites of a pass fit into memory."""
    return estimate_bytes(model, given)[0] <= MAX_BYTES


def estimate_bytes(model: ServedModel, given: ModelInput) -> tuple[int, int]:
    """Return an estimate of the bytes of all sites of a pass, and the number of tokens of its longest side."""
    config = model.network.config
    sequences = [each for name in ("source", "decoder_input") if (each := getattr(given.batch, name, None)) is not None]
    n_tokens = max((each.tokens.shape[1] for each in sequences), default=getattr(config, "n_positions", 0))
    n_blocks = sum(stack["n_blocks"] for stack in model.describe_stacks())
    layers = (model.network.get_submodule(path) for path in attention_layers(model))
    whole_maps = sum(each.n_heads for each in layers if isinstance(each, Attention) and not is_exact(each))
    width = 16 * getattr(config, "d_model", 0) + 3 * getattr(config, "d_ff", 0)
    return 4 * n_tokens * (n_blocks * width + whole_maps * n_tokens), n_tokens


def too_long_error(n_bytes: int, n_tokens: int) -> DataError:
    """Return the error for a pass of which not every site fits into memory."""
    too_many = (
        "text: expected a text whose pass fits into {most} MiB, found {tokens} tokens, which need {needed} MiB; give a shorter text,"
        " or look at its attention maps alone"
    )
    sizes = {"most": MAX_BYTES // 2**20, "tokens": n_tokens, "needed": n_bytes // 2**20}
    return DataError(phrase("errors.too_many_bytes", too_many, **sizes))


def number_error(name: str, n: int, found: int) -> ConfigError:
    """Return the error for a field that must be from 0 to ``n`` - 1."""
    values = {"last": str(n - 1), "found": str(found)}
    return ConfigError(phrase("errors.number", "{name}: expected a number from 0 to {last}, found {found}", name=name, **values))


def layer_error(found: str) -> ConfigError:
    """Return the error for an address that no attention layer has."""
    return ConfigError(
        phrase("errors.layer", "attention: expected the address of an attention layer, found {found}", found=f"{found!r:.80}")
    )


def open_map(found: Pass, attention: str, head: int) -> TiledMap:
    """Return the attention map of one head, with the edits of the pass; where the sites were not kept, it is computed tile by tile.

    In that case the model runs again and keeps the sites of the head; the edits must be in force.

    Raises:
        ConfigError: there is no such layer or head, or an edit changes the weights of a map that does not fit into memory.
    """
    layers = (*attention_layers(found.model), *recurrent_attention(found.model))
    if attention not in layers:
        raise layer_error(attention)
    edited, module = attention in found.trace.edited, found.model.network.get_submodule(attention)
    if found.whole and (edited or not is_exact(module)):
        weights = found.trace.activations[f"{attention}.weights"][0]
        if head >= len(weights):
            raise number_error("head", len(weights), head)
        return TiledMap(StoredMap(weights[head]))
    if found.whole:
        return TiledMap(AttentionMap(select_head(found.trace.activations, attention, head), attention, head))
    if any(isinstance(edit, AttentionEdit) for edit in (found.model.network.edits or {}).get(f"{attention}.z", ())):
        english = "edits: expected none that changes the weights of {attention} in a long text, found one; shorten the text"
        raise ConfigError(phrase("errors.long_edit", english, attention=attention))
    return TiledMap(attention_map(found.model.run, found.input.batch, attention, head), certified=not edited)


def attention_layers(model: ServedModel) -> list[str]:
    """Return the addresses of the attention layers of the blocks."""
    return [path for path, module in model.network.named_modules() if isinstance(module, Attention) and ".blocks." in path]


def recurrent_attention(model: ServedModel) -> list[str]:
    """Return the addresses of the attention of recurrent decoders over the source, which has one head that cannot be switched off."""
    return [path for path, module in model.network.named_modules() if isinstance(module, SourceAttention)]
