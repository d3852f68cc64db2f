"""Every named quantity equals what the modules of a real forward pass computed, or its formula in float64, in all families."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from tests.models.combinations import (
    ENCODERS,
    FAMILIES,
    SET_TEXTS,
    SET_WRITERS,
    SIZES,
    batch_for,
    combinations,
    described,
    recurrent,
)
from tests.models.test_combinations import built
from tests.models.test_vision import PLAIN, SET_NETWORKS
from tests.models.test_vision import described as described_network
from tests.size import ROOT
from tests.tiers import every
from transom.config.model import AnyModel
from transom.config.schema import allowed_schemas, kinds
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import ImageBatch
from transom.errors import ConfigError
from transom.files.message import Message, render
from transom.inspection.activations import Activations, sequences_of
from transom.inspection.messages.tables import ENGLISH, templates
from transom.inspection.names import FAMILIES as FAMILIES_OF_MODELS
from transom.inspection.names import QUANTITIES, Quantity, description, families_of, list_names, owner_kind, required_sites, select_names
from transom.inspection.vocabulary import names_page
from transom.layers.attention import Attention, repeat_kv
from transom.layers.embedding import Embedding
from transom.layers.feed_forward import GatedFeedForward
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm, DynamicTanh, LayerNorm, Norm, RmsNorm
from transom.layers.observe import ActivationRecorder
from transom.layers.recurrent.recurrent_decoder import SourceAttention
from transom.layers.recurrent.recurrent_layers import RecurrentLayer, RecurrentStack
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.models.base import Network
from transom.models.encoder import TextEmbedderTransformer
from transom.tasks.audio.schema import SpectrogramTransformerConfig

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


@contextmanager
def module_outputs(model: Network) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Collect the first input and the output of every module during a pass."""
    inputs, outputs, handles = dict[str, Any](), dict[str, Any](), []

    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            inputs.setdefault(path, arguments[0] if arguments else None)
            outputs.setdefault(path, output)

        return hook

    for path, module in model.named_modules():
        handles.append(module.register_forward_hook(keep(path)))
    yield inputs, outputs
    for handle in handles:
        handle.remove()


def heads(x: Tensor, width: int) -> Tensor:
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def from_modules(model: Network, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Tensor]:
    """Return the quantities that are the output of a module, by address."""
    found = dict[str, Tensor]()
    for path, module in model.named_modules():
        if path not in outputs:
            continue
        kind = owner_kind(module, path)
        if kind in ("attention", "approximate attention"):
            widths = {"q": module.d_head, "k": module.d_head, "v": module.d_value}
            found |= {f"{path}.{name}_proj": heads(outputs[f"{path}.{name}"], width) for name, width in widths.items()}
            found[f"{path}.out"] = outputs[path][0]
        elif isinstance(module, Norm) or kind in ("stack", "mixture of experts"):
            found[f"{path}.out"] = outputs[path]
        elif kind == "recurrent stack" and path in outputs:
            found[f"{path}.out"] = outputs[path][0]
        elif kind == "feed-forward":
            found |= {f"{path}.pre": outputs[f"{path}.up"], f"{path}.out": outputs[path]}
        elif kind == "gated feed-forward":
            found |= {f"{path}.pre": outputs[f"{path}.gate"], f"{path}.up": outputs[f"{path}.up"], f"{path}.out": outputs[path]}
        elif kind == "embedding" and f"{path}.tokens" in outputs:  # a shared table has one path
            found[f"{path}.token"] = outputs[f"{path}.tokens"] * module.scale
        elif kind == "patch embedding":
            found |= {f"{path}.patch": outputs[f"{path}.projection"], f"{path}.patches": inputs[f"{path}.projection"]}
    if "unembedding" in inputs:
        found["last_hidden"] = inputs["unembedding"]
    return found


def by_formula(a: Activations) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield address, found and expected values of quantities that are no module's output."""
    for path, module in a.model.named_modules():
        if isinstance(module, LayerNorm | RmsNorm) and a.get(f"{path}.x") is not None:
            yield from norm_formulas(a, path, module)
        elif isinstance(module, Attention) and a.get(f"{path}.q") is not None:
            yield from attention_formulas(a, path, module)
        elif isinstance(module, RecurrentLayer):
            yield from cell_formulas(a, path, module)
        elif isinstance(module, SourceAttention):
            yield from source_formulas(a, path)
        elif type(module) is RecurrentStack:  # of a language model
            yield f"{path}.out", a[f"{path}.out"], a["last_hidden"]
        elif isinstance(module, BatchNorm | DynamicTanh) and a.get(f"{path}.x") is not None:
            yield from other_norm_formulas(a, path, module)
        elif isinstance(module, GatedFeedForward) and a.get(f"{path}.hidden") is not None and a.get(f"{path}.up") is not None:
            yield f"{path}.gate", a[f"{path}.gate"] * a[f"{path}.up"], a[f"{path}.hidden"]
        elif isinstance(module, MixtureOfExperts) and a.get(f"{path}.router") is not None:
            yield from router_formulas(a, path, module)
        elif isinstance(module, Embedding) and a.get(f"{path}.resid") is not None:
            tokens, p = sequences_of(a, path).tokens, a.get(f"{path}.position")
            yield f"{path}.token", a[f"{path}.token"], module.tokens.weight[tokens] * module.scale
            whole = a[f"{path}.token"] if p is None else a[f"{path}.token"] + p
            if module.token_types is not None:
                types = getattr(sequences_of(a, path), "token_types", None)
                yield (
                    f"{path}.token_type",
                    a[f"{path}.token_type"],
                    module.token_types.weight[torch.zeros_like(tokens) if types is None else types],
                )
                whole = whole + a[f"{path}.token_type"]
            yield f"{path}.sum", a[f"{path}.sum"], whole
            yield f"{path}.position", whole if module.norm is None else module.norm(whole), a[f"{path}.resid"]
        elif isinstance(module, PatchEmbedding):
            x, p = a[f"{path}.patch"], a.get(f"{path}.position")
            tokens = [a[f"{path}.{name}"] for name in ("cls", "distillation") if getattr(module, name) is not None]
            x = torch.cat([*tokens, x], 1)
            yield f"{path}.position", x if p is None else x + p, a[f"{path}.resid"]
        elif isinstance(module, DepthRouter):
            yield f"{path}.selected", a[f"{path}.selected"] & (a[f"{path}.score"] > 0), a[f"{path}.selected"]
    yield from output_formulas(a)
    logits = a["logits"].double()
    shifted = logits - logits.amax(-1, keepdim=True)
    yield "probs", a["probs"], shifted.exp() / shifted.exp().sum(-1, keepdim=True)
    yield "log_probs", a["log_probs"], shifted - shifted.exp().sum(-1, keepdim=True).log()


def norm_formulas(a: Activations, path: str, module: LayerNorm | RmsNorm) -> Iterator[tuple[str, Tensor, Tensor]]:
    x, n = a[f"{path}.x"], a[f"{path}.x"].shape[-1]
    if isinstance(module, LayerNorm):
        mean = x.sum(-1) / n
        yield f"{path}.mean", a[f"{path}.mean"], mean
        yield f"{path}.variance", a[f"{path}.variance"], (x * x).sum(-1) / n - mean * mean
        yield f"{path}.normalized", a[f"{path}.normalized"] * a[f"{path}.scale"][..., None] + mean[..., None], x
        yield f"{path}.scale", a[f"{path}.scale"].square(), a[f"{path}.variance"] + module.eps
    else:
        yield f"{path}.scale", a[f"{path}.scale"].square(), a[f"{path}.mean_square"] + module.eps
        yield f"{path}.mean_square", a[f"{path}.mean_square"], (x * x).sum(-1) / n
        yield f"{path}.normalized", a[f"{path}.normalized"] * a[f"{path}.scale"][..., None], x


def other_norm_formulas(a: Activations, path: str, module: BatchNorm | DynamicTanh) -> Iterator[tuple[str, Tensor, Tensor]]:
    x = a[f"{path}.x"]
    if isinstance(module, DynamicTanh):
        yield f"{path}.normalized", a[f"{path}.normalized"], torch.tanh(module.alpha * x)
        return
    for name in ("mean", "variance"):
        yield f"{path}.{name}", a[f"{path}.{name}"], getattr(module, name)
    yield f"{path}.scale", a[f"{path}.scale"].square(), module.variance + module.eps
    yield f"{path}.normalized", a[f"{path}.normalized"] * a[f"{path}.scale"] + module.mean, x


def router_formulas(a: Activations, path: str, module: MixtureOfExperts) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Check that the chosen experts have the largest scores, and that their gates are these, perhaps divided by their sum."""
    logits, chosen = a[f"{path}.router"], a[f"{path}.chosen"]
    e = logits.exp()
    s = e / e.sum(-1, keepdim=True) if module.config.scoring_func == "softmax" else e / (1 + e)
    picked = s.gather(-1, chosen)
    yield f"{path}.router_probs", a[f"{path}.router_probs"], s / s.sum(-1, keepdim=True)
    yield f"{path}.gates", a[f"{path}.gates"], picked / picked.sum(-1, keepdim=True) if module.config.norm_topk_prob else picked
    biased = s if module.bias is None else s + module.bias
    lowest = biased.gather(-1, chosen).amin(-1, keepdim=True)
    yield f"{path}.chosen", (biased >= lowest).sum(-1), torch.full(chosen.shape[:-1], chosen.shape[-1])


def output_formulas(a: Activations) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare the vectors before the output projection with the logits; those of an embedder are unit vectors."""
    model: Any = a.model
    h = a["last_hidden"]
    if isinstance(model, TextEmbedderTransformer):
        yield "last_hidden", h, a["pooled"] / a["pooled"].norm(dim=-1, keepdim=True)
        yield "pooled", h @ model.vectors(a.batch.target).T / model.config.temperature, a["logits"]
    else:
        yield "last_hidden", model.unembedding(h), a["logits"]


def attention_formulas(a: Activations, path: str, module: Attention) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare weights, scores and outputs with the head outputs of the pass, which the kernel computed."""
    q, k, v, z = (a[f"{path}.{name}"] for name in "qkvz")
    weights = a[f"{path}.weights"]
    yield f"{path}.weights", weights @ repeat_kv(v, q.shape[1]), z
    parts = a[f"{path}.head_out"].sum(1)
    bias = getattr(module.o, "bias", None)
    yield f"{path}.head_out", parts if bias is None else parts + bias, a[f"{path}.out"]
    yield f"{path}.concat", a[f"{path}.concat"].unflatten(-1, (-1, v.shape[-1])).transpose(1, 2), z
    if a.get(f"{path}.scores") is None:
        return
    expected = torch.einsum("bhqd,bhkd->bhqk", q, repeat_kv(k, q.shape[1]))
    yield f"{path}.dot_products", a[f"{path}.dot_products"], expected
    if module.softcap is None and not _biased(a):
        yield f"{path}.scores", a[f"{path}.scores"], expected / q.shape[-1] ** 0.5
    visible = a[f"{path}.logsumexp"].isfinite()
    unmasked = a[f"{path}.masked_scores"].isfinite()
    yield f"{path}.masked_scores", a[f"{path}.masked_scores"][unmasked], a[f"{path}.scores"][unmasked]
    yield f"{path}.scores", (a[f"{path}.scores"] - a[f"{path}.logsumexp"][..., None]).exp()[unmasked], weights[unmasked]
    yield f"{path}.logsumexp", (a[f"{path}.masked_scores"] - a[f"{path}.logsumexp"][..., None]).exp()[visible], weights[visible]


def _biased(a: Activations) -> bool:
    config: Any = a.model.config
    return getattr(config.position, "kind", "none") in ("alibi", "relative") if hasattr(config, "position") else False


def cell_formulas(a: Activations, path: str, module: RecurrentLayer) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare the states at tokens, which PyTorch's kernel computed, with those that follow from the gates."""
    h, tokens = a[f"{path}.h"], sequences_of(a, path).segments > 0
    if isinstance(module.rnn, nn.LSTM):
        name, found, expected = "c", (a[f"{path}.o"] * a[f"{path}.c"].tanh())[tokens], h[tokens]
    elif isinstance(module.rnn, nn.GRU):
        z, n = a[f"{path}.z"], a[f"{path}.n"]
        now, before = (slice(0, -1), slice(1, None)) if path.endswith("backward_rnn") else (slice(1, None), slice(0, -1))
        both = tokens[:, 1:] & tokens[:, :-1]
        name, found, expected = "z", (z[:, now] * h[:, before] + (1 - z[:, now]) * n[:, now])[both], h[:, now][both]
    else:
        name, found, expected = "pre", a[f"{path}.pre"].tanh()[tokens], h[tokens]
    for each in (name, "h"):
        yield f"{path}.{each}", found, expected


def source_formulas(a: Activations, path: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    weights, scores = a[f"{path}.weights"], a[f"{path}.scores"]
    yield f"{path}.weights", weights @ a[f"{path}.v"], a[f"{path}.z"]
    seen = weights > 0
    e = scores.exp() * seen
    yield f"{path}.scores", e / e.sum(-1, keepdim=True), weights


def run(model: Network, batch: Any) -> tuple[Activations, dict[str, Tensor]]:
    """Record all sites of a pass; return its activations, and what the modules returned."""
    recorder = ActivationRecorder(["*"])
    with module_outputs(model) as (inputs, outputs):
        logits = model(batch, recorder)
    return Activations(model, batch, recorder.activations | {"logits": logits}), from_modules(model, inputs, outputs)


def check_all(model: Network, batch: Any) -> set[str]:
    """Compare every listed quantity with the pass; return the addresses that were compared."""
    a, modules = run(model, batch)
    listed = [each.address for each in list_names(model.config)]
    compared = set(a.recorded)
    for address in listed:
        found = a.get(address)
        if address in modules and found is not None:
            assert torch.allclose(found, modules[address], **CLOSE), address
            compared.add(address)
    for address, found, expected in by_formula(a):
        assert torch.allclose(found, expected, **CLOSE), address
        compared.add(address)
    resting = {address for address in listed if a.get(address) is None}
    assert all(may_rest(model, address) for address in resting), resting
    uncompared = {address.rpartition(".")[2] for address in listed if address not in compared | resting and a[address].numel()}
    assert uncompared <= UNCOMPARED, uncompared
    return compared


UNCOMPARED = {"i", "f", "g", "o", "r", "n", "attentional", "maxout", "cls", "distillation"}
"""Names whose values enter those of other names that are compared: the gates those of the states, for example."""


def may_rest(model: Network, address: str) -> bool:
    """Return whether no token may be sent to the owner of a quantity: an expert, or a block with a depth router."""
    block = re.match(r"(.*\.blocks\.\d+)\.", address)
    routed = block is not None and getattr(model.get_submodule(block[1]), "depth", None) is not None
    return ".experts." in address or routed


def image_batch(config: ImageClassifierConfig) -> ImageBatch:
    """Draw two images."""
    pixels = torch.rand(
        2, config.channels, config.image_size, config.image_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    return ImageBatch(pixels, torch.tensor([0, 2]), (0, 1))


TEXTS = [f"{i} {fields['kind']}" for i, fields in enumerate(SET_TEXTS)]
IMAGES = [f"{i} {fields['kind']}" for i, fields in enumerate(SET_NETWORKS)]


@pytest.mark.parametrize("number", every(6, range(len(SET_TEXTS)), long=4), ids=lambda number: TEXTS[number])
@torch.no_grad()
def test_every_quantity_is_that_of_the_pass(number: int) -> None:
    config = described(SET_TEXTS[number])
    check_all(built(config), batch_for(config))


@pytest.mark.parametrize("number", every(8, range(len(SET_NETWORKS)), long=4), ids=lambda number: IMAGES[number])
@torch.no_grad()
def test_every_quantity_of_an_image_is_that_of_the_pass(number: int) -> None:
    config = described_network(SET_NETWORKS[number])
    check_all(built(config), image_batch(config))


@pytest.mark.soak
@settings(max_examples=20)
@given(combinations(FAMILIES + ENCODERS) | recurrent())
@torch.no_grad()
def test_any_combination_has_the_quantities_of_its_pass(fields: dict[str, Any]) -> None:
    config = described(fields)
    check_all(built(config), batch_for(config))


def test_an_unknown_name_is_answered_with_the_three_nearest() -> None:
    known = [each.address for each in list_names(described(SET_TEXTS[3]))]
    with pytest.raises(ConfigError, match=r"found 'resid_pots'; the nearest are .*resid_post, .*, .* \(transom names RUN\)"):
        select_names(known, ["resid_pots"], {})


def test_the_shapes_are_those_of_a_pass_and_no_weights_are_drawn() -> None:
    config = described(SET_TEXTS[3])
    before = torch.get_rng_state()
    shapes = {each.address: each.shape for each in list_names(config)}
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes["logits"][-1] == shapes["probs"][-1] and shapes["logits"][0] == 1


COMPONENTS: list[dict[str, Any]] = [
    {"norm": "layernorm", "feed_forward": "relu", "position": "learned", "depth": {"kind": "mod", "capacity": 0.5, "every": 1}},
    {"norm": "rmsnorm", "feed_forward": "swiglu", "attention": {"approximation": "linear"}},
    {"norm": "batchnorm", "feed_forward": {"kind": "moe", "n_experts": 2, "top_k": 2}},
    {"norm": "dyt"},
    {"norm": "none"},
]
"""Components that have quantities of their own, for each family of Transformers."""
SHARED = ("stem", "position", "pooling", "distillation")
"""Fields that transformers of spectrograms share with those of images."""


@pytest.mark.soak
def test_the_families_of_every_row_are_those_that_have_it() -> None:
    """No row is left that no model has, and no family that a row does not name."""
    met = dict[tuple[str, str], set[str]]()
    families = {fields["kind"]: SIZES | fields for fields in reversed(FAMILIES + ENCODERS)}
    texts = [family | more for family in families.values() for more in COMPONENTS]
    texts += [family | {"n_token_types": 2} for kind, family in families.items() if kind in {each["kind"] for each in ENCODERS}]
    images = [PLAIN | more for more in COMPONENTS]
    networks = [described_network(fields) for fields in SET_NETWORKS + images]
    sounds = {"kind": "spectrogram-transformer", "classes": ["a", "b"], "image_size": 16, "patch_size": 4} | {"d_model": 8, "n_heads": 2}
    shared = list[dict[str, Any]]()
    for fields in SET_NETWORKS:
        parts = {name: fields[name] for name in SHARED if name in fields}
        shared += [parts] if parts not in shared else []
    networks += [SpectrogramTransformerConfig.model_validate(sounds | {"n_layers": 2, "d_ff": 9} | each) for each in COMPONENTS + shared]
    for config in [*map(described, SET_WRITERS + texts), *networks]:
        for each in list_names(config):
            met.setdefault((each.kind, each.quantity.name), set()).add(config.kind)
    expected = {(kind, row.name): set(families_of(kind, row)) for kind, rows in QUANTITIES.items() for row in rows}
    assert expected == met


SYMBOLS = re.compile(r"Concat|[a-z]_hat|h~_t|mu|sigma|eps|sqrt|tanh|gamma|beta|alpha|exp|score\(|scores_ij|sum_\w+|[sx]_\w+|\w_\w+|ln\b")
"""Parts of equations that have several letters and are no words."""


def test_words_of_formulas_are_messages_and_every_message_is_of_a_formula() -> None:
    rows = [row for rows in QUANTITIES.values() for row in rows]
    found = {each.code[0] for row in rows if isinstance(each := description(row), Message)}
    assert found == {key for key in templates(ENGLISH) if key.startswith("explain.quantities.")}
    assert all(description(row) == row.formula for row in rows)
    plain = [row.formula for row in rows if not isinstance(description(row), Message)]
    assert {word for text in plain for word in re.findall("[A-Za-z]{2,}", SYMBOLS.sub("", text))} == set() and len(plain) > 10
    assert render(description(row_of("attention", "q")).code, templates("de")) == "Queries, wie die Scores sie lesen"  # type: ignore[attr-defined]
    assert "f c_{t-1} + i g: Zellzustand" in render(description(row_of("recurrent layer", "c")).code, templates("de"))  # type: ignore[attr-defined]


def row_of(kind: str, name: str) -> Quantity:
    return next(row for row in QUANTITIES[kind] if row.name == name)


def test_the_page_of_names_is_current() -> None:
    assert (ROOT / "docs" / "names.md").read_text(encoding="utf-8") == names_page(), "run `make docs`"
    assert set(FAMILIES_OF_MODELS) == {kind for option in allowed_schemas(AnyModel) for kind in kinds(option)}


@pytest.mark.parametrize("number", every(99, [5, *(n for n in range(len(SET_TEXTS)) if n != 5)], long=4), ids=lambda number: TEXTS[number])
@torch.no_grad()
def test_a_name_follows_from_the_sites_that_it_requires(number: int) -> None:
    """With only those recorded, and the routers, the value is that of a pass with all sites."""
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    whole, _ = run(model, batch)
    routers = [address for address in whole.recorded if address.endswith((".depth.score", ".ff.router"))]
    for each in list_names(config)[::7]:
        recorder = ActivationRecorder([*required_sites(config, [each.address]), *routers])
        logits = model(batch, recorder)
        found = Activations(model, batch, recorder.activations | {"logits": logits}).get(each.address)
        expected = whole.get(each.address)
        assert (found is None) == (expected is None), each.address
        assert found is None or expected is None or torch.equal(found, expected), each.address


@pytest.mark.parametrize("number", every(16, range(len(SET_TEXTS)), long=6), ids=lambda number: TEXTS[number])
@torch.no_grad()
def test_in_float32_every_quantity_is_near_that_in_float64(number: int) -> None:
    """Within 1e-5 of the largest value of the quantity."""
    config = described(SET_TEXTS[number])
    model = built(config)
    exact, _ = run(model, batch_for(config))
    found, _ = run(copy.deepcopy(model).float(), batch_for(config))
    for each in list_names(config):
        expected, x = exact.get(each.address), found.get(each.address)
        assert (expected is None) == (x is None), each.address
        if expected is None or x is None or not expected.numel():
            continue
        finite = expected.isfinite()
        assert torch.equal(finite, x.isfinite()), each.address
        error = (x.double() - expected.double())[finite].abs()
        assert not error.numel() or error.max() <= 1e-5 * expected.double()[finite].abs().max().clamp(min=1e-3), each.address
