"""Sweeps: the effect of each of many single edits on an answer, with many edited copies of the input as the rows of a batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transom.decoding.inference import ProgressCallback, eval_mode, ignore_progress
from transom.decoding.search.loop import log_probabilities
from transom.errors import ConfigError
from transom.inspection.edits.changes import AttentionChange, AttentionEdit, ComputeValues, Counter, OtherPass, ValueEdit, batch_mean
from transom.inspection.edits.compile_edits import compile_edit, merge_edits
from transom.inspection.edits.files import dump_edits
from transom.inspection.edits.references import References
from transom.inspection.edits.schemas import AblateHeads, AblateNeurons, EditConfig, KnockOutKey, Patch
from transom.layers.observe import ActivationRecorder, SiteEdit, Visit
from transom.models.base import Network

Over = Literal["heads", "neurons", "positions", "keys"]
"""Kinds of items that a sweep edits one by one: heads or neurons are ablated, positions patched from another pass, keys knocked out."""

Target = Callable[[Tensor], Float[Tensor, "rows"]]
"""Maps the logits of a batch, one row per edit, to the log-probability of the answer."""

ABLATIONS: dict[str, type[AblateHeads | AblateNeurons | KnockOutKey]] = {
    "heads": AblateHeads,
    "neurons": AblateNeurons,
    "keys": KnockOutKey,
}
"""Schema of the edits of a sweep; those over positions are patches."""

MAX_TOKENS = 4096
"""Tokens per batch of edited copies."""


class SweepRow(NamedTuple):
    """Result of one edit.

    Attributes:
        edit: the edit.
        block: path of the block.
        number: number of the head, neuron, position or key, from 0.
        log_p: log-probability of the answer with the edit.
        change: ``log_p`` minus the log-probability without an edit.
    """

    edit: EditConfig
    block: str
    number: int
    log_p: float
    change: float

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-serializable data."""
        (edit,) = dump_edits([self.edit])["edits"]
        return {"block": self.block, "number": self.number, "log_p": self.log_p, "change": self.change, "edit": edit}


class SweepResult(NamedTuple):
    """Result of a sweep.

    Attributes:
        log_p: log-probability of the answer without edits.
        rows: result of each edit, by block and number.
    """

    log_p: float
    rows: list[SweepRow]


@dataclass(frozen=True, eq=False)
class _RowEdit:
    """Replaces values where ``where`` is True, which differs from row to row."""

    compute: ComputeValues
    where: Bool[Tensor, "rows *axes"]

    @property
    def reads(self) -> tuple[str, ...]:
        """No other sites."""
        return ()

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Return ``x`` with new values."""
        new = self.compute(x, visit)
        where = self.where if new.where is None else self.where & new.where
        return torch.where(where, new.value.to(x).expand_as(x), x)


class _Variant(NamedTuple):
    """One edit of a sweep: the site that it changes, and the number on an axis of the site."""

    config: EditConfig
    block: str
    address: str
    number: int


def last_answer(logits: Tensor, answer: int | None = None) -> tuple[Target, int]:
    """Return the target for an answer at the last position, or for a class; by default the most probable one of the first row."""
    own = _last(logits)[0].argmax().item() if answer is None else answer
    return lambda logits: log_probabilities(_last(logits))[:, int(own)].double(), int(own)


def _last(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.ndim == 3 else logits


def sweep(
    model: Any,
    batch: Any,
    over: Over,
    *,
    target: Target | None = None,
    stack: Literal["encoder", "decoder"] | None = None,
    part: Literal["attn", "cross"] = "attn",
    blocks: Sequence[int] | None = None,
    value: Literal["zero", "mean", "resample"] = "zero",
    texts: Sequence[str] = (),
    source: str | None = None,
    site: Literal["resid_pre", "resid_mid", "resid_post"] = "resid_post",
    inputs: Mapping[str, Any] | None = None,
    max_tokens: int = MAX_TOKENS,
    notify: ProgressCallback = ignore_progress,
) -> SweepResult:
    """Edit each head, neuron, position or key on its own, and return how much the log-probability of the answer changes.

    The rows of a batch are copies of the input, each with its own edit; the results are those of single edits.

    Args:
        model: a run loaded by ``transom.load``, or a model.
        batch: input of one row.
        over: "heads" and "neurons" are ablated, "positions" patched from ``source`` at ``site``, "keys" hidden from all queries.
        target: log-probability of the answer from the logits; by default of the model's own top answer at the last position.
        stack: encoder or decoder; needed for models with both.
        part: attention layer of heads and keys.
        blocks: indices of the blocks; None for all.
        value: what replaces a head or neuron, as in ``AblationConfig``; "mean" without texts is over the tokens of the input.
        texts: reference texts for mean and resample.
        source: text from which positions are patched, or the name of an input.
        site: residual stream that is patched.
        inputs: batch or tensor by name, for models without a tokenizer.
        max_tokens: maximum tokens per batch of copies.
        notify: progress callback, called with the number of edits done and of all edits.

    Raises:
        ConfigError: the input has several rows, or an option does not fit the model or the others.
    """
    run = None if isinstance(getattr(model, "_orig_mod", model), Network) else model
    given = model if run is None else run.model
    network: Network = getattr(given, "_orig_mod", given)  # of a compiled model
    if (source is None) == (over == "positions"):
        raise ConfigError("source: expected a text for positions, and none for heads, neurons and keys; give it or leave it out")
    if value == "resample" and not texts:
        raise ConfigError("texts: expected reference texts for resample, found none; give texts")
    batch, recorder = network.as_batch(batch), ActivationRecorder(["*"])
    with torch.no_grad(), eval_mode(network):
        logits = network(batch, recorder)
        if len(logits) != 1:
            raise ConfigError(f"batch: expected an input of one row, found {len(logits)}; sweep over one input at a time")
        target = target or last_answer(logits)[0]
        base, activations = target(logits).item(), recorder.activations
        options = {"part": part, "value": value, "texts": tuple(texts)}
        plan = _Plan(over, stack, blocks, options, source, site)
        compiled = plan.compile(network, References(run, network, inputs))
        variants = [each for address in compiled for each in plan.variants(address, compiled[address], activations)]
        rows, n_rows = list[SweepRow](), max(max_tokens // _n_tokens(activations), 1)
        for start in range(0, len(variants), n_rows):
            chosen = variants[start : start + n_rows]
            outer, network.edits = network.edits, merge_edits(network.edits or {}, plan.row_edits(chosen, compiled, activations))
            try:
                found = target(network(repeat_batch(batch, len(chosen)))).tolist()
            finally:
                network.edits = outer
            rows += [SweepRow(each.config, each.block, each.number, p, p - base) for each, p in zip(chosen, found, strict=True)]
            notify(len(rows), len(variants))
    return SweepResult(base, rows)


class _Plan(NamedTuple):
    """Plan of the edits of a sweep; the fields are arguments of ``sweep``."""

    over: Over
    stack: Literal["encoder", "decoder"] | None
    blocks: Sequence[int] | None
    options: dict[str, Any]
    source: str | None
    site: str

    def config(self, **fields: Any) -> EditConfig:
        """Return an edit of heads, neurons or keys."""
        schemas: dict[str, type[AblateHeads | AblateNeurons | KnockOutKey]] = {
            "heads": AblateHeads,
            "neurons": AblateNeurons,
            "keys": KnockOutKey,
        }
        schema = schemas[self.over]
        options = {name: value for name, value in self.options.items() if name in schema.model_fields}
        return schema(stack=self.stack, **options, **fields)

    def compile(self, network: Network, references: References) -> dict[str, SiteEdit]:
        """Return the edit of whole layers per address: all heads, neurons or positions; keys are chosen by ``row_edits``."""
        blocks = None if self.blocks is None else tuple(self.blocks)
        if self.over != "positions":
            fields = {"keys": (0,)} if self.over == "keys" else {}
            return compile_edit(self.config(blocks=blocks, **fields), network, references).sites
        places = compile_edit(AblateNeurons(stack=self.stack, blocks=blocks), network, references).sites
        paths = [".".join(address.split(".")[:3]) for address in places]
        sites = dict[str, SiteEdit]()
        for path in paths:
            if network.get_submodule(path).depth is not None:
                raise ConfigError(f"expected blocks that process all tokens, found a depth router at {path}; choose other blocks")
            sites |= compile_edit(Patch(name=f"{path}.{self.site}", text=self.source), network, references).sites
        return sites

    def variants(self, address: str, edit: SiteEdit, activations: Mapping[str, Tensor]) -> Iterator[_Variant]:
        """Yield the single edits of a site."""
        x, path = activations[address], ".".join(address.split(".")[:3])
        block = int(path.rpartition(".")[2])
        match self.over:
            case "heads":
                for i in range(x.shape[1]):
                    yield _Variant(self.config(blocks=(block,), heads=(i,)), path, address, i)
            case "neurons":
                for i in range(x.shape[-1]):
                    yield _Variant(self.config(blocks=(block,), neurons=(i,)), path, address, i)
            case "keys":
                for i in range(activations[f"{address.removesuffix('.z')}.k"].shape[2]):
                    yield _Variant(self.config(blocks=(block,), keys=(i,)), path, address, i)
            case "positions":
                assert isinstance(edit, ValueEdit) and isinstance(edit.compute, OtherPass)
                for i in range(min(x.shape[1], int(edit.compute.lengths))):
                    yield _Variant(Patch(name=address, positions=(i,), text=self.source), path, address, i)

    def row_edits(
        self, variants: Sequence[_Variant], compiled: Mapping[str, SiteEdit], activations: Mapping[str, Tensor]
    ) -> dict[str, SiteEdit]:
        """Return the edits of a batch whose row i has variant i."""
        found = dict[str, SiteEdit]()
        for address in dict.fromkeys(each.address for each in variants):
            x, edit = activations[address], compiled[address]
            rows = [row for row, each in enumerate(variants) if each.address == address]
            indices = [variants[row].number for row in rows]
            if isinstance(edit, AttentionEdit):
                n_keys = activations[f"{address.removesuffix('.z')}.k"].shape[2]
                hidden = torch.zeros(len(variants), 1, x.shape[2], n_keys, dtype=torch.bool, device=x.device)
                hidden[rows, 0, :, indices] = True
                found[address] = AttentionEdit(edit.path, (AttentionChange(Counter(x.device), hidden=hidden),))
                continue
            assert isinstance(edit, ValueEdit)
            axis = x.ndim - 1 if self.over == "neurons" else 1
            where = torch.zeros(len(variants), x.shape[axis], dtype=torch.bool, device=x.device)
            where[rows, indices] = True
            own_mean = self.options["value"] == "mean" and not self.options["texts"] and self.over != "positions"
            compute = batch_mean(edit.selection.position_axis, by_row=True) if own_mean else edit.compute
            found[address] = _RowEdit(compute, where.reshape(*(len(variants) if a == 0 else -1 if a == axis else 1 for a in range(x.ndim))))
        return found


def _n_tokens(activations: Mapping[str, Tensor]) -> int:
    """Return the number of positions of the longest stack."""
    return max(x.shape[1] for address, x in activations.items() if address.endswith(".resid_post"))


def repeat_batch(batch: Any, n: int) -> Any:
    """Return a batch of ``n`` copies of a batch of one row."""

    def repeated(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.repeat(n, *(1 for _ in x.shape[1:]))
        return repeat_batch(x, n) if is_dataclass(x) else x if x is None else x * n

    return replace(batch, **{field.name: repeated(getattr(batch, field.name)) for field in fields(batch)})
