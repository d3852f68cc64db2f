"""Gradients of quantities, checked against gradients that autograd computed elsewhere: of weights, and of sites further up.

Each test uses one step of the chain rule that the gradients themselves do not use: the gradient of a linear layer's weight is d(out)^T x,
for example, and the gradient of a norm's input follows from those of mean, variance and normalized vectors.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.inspection.test_names import IMAGES, TEXTS, image_batch, module_outputs
from tests.models.combinations import SET_TEXTS, batch_for, described
from tests.models.test_combinations import built
from tests.models.test_vision import SET_NETWORKS
from tests.models.test_vision import described as described_network
from tests.tiers import every
from transom.config.model import DecoderConfig
from transom.errors import ConfigError
from transom.inspection.activations import Activations, sequences_of
from transom.inspection.derive_recurrent import unroll
from transom.inspection.gradients import default_loss, gradient_pass
from transom.inspection.names import list_names, owner_kind
from transom.inspection.trace import trace
from transom.layers.attention import Attention, repeat_kv
from transom.layers.feed_forward import FeedForward, GatedFeedForward
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm, LayerNorm, RmsNorm
from transom.layers.recurrent.recurrent_decoder import SourceAttention
from transom.layers.recurrent.recurrent_layers import RecurrentLayer
from transom.layers.vision.patch_embedding import PatchEmbedding
from transom.models.base import Network
from transom.models.build import build_model
from transom.models.encoder import TextEmbedderTransformer, mean_pool

CLOSE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


def weight_gradient(d_out: Tensor, x: Tensor) -> Tensor:
    """Return d(out)^T x, summed over all axes but the last."""
    return d_out.flatten(0, -2).T @ x.flatten(0, -2)


def merged(x: Tensor) -> Tensor:
    """Concatenate heads: (batch, heads, length, width) to (batch, length, heads * width)."""
    return x.transpose(1, 2).flatten(2)


Check = tuple[str, Tensor, Tensor]
"""Names that are checked, found and expected gradient."""


def checks(a: Activations, model: Network, inputs: dict[str, Any]) -> Iterator[Check]:
    """Yield gradients found by the chain rule from those of quantities, and expected: those that autograd gives."""
    for path, module in model.named_modules():
        if isinstance(module, LayerNorm | RmsNorm | BatchNorm) and a.get(f"{path}.out.grad") is not None:
            yield from norm_checks(a, path, module)
        elif isinstance(module, Attention) and a.get(f"{path}.weights.grad") is not None:
            yield from attention_checks(a, path, module, inputs)
        elif isinstance(module, SourceAttention):
            d_z, z = a[f"{path}.z.grad"], a[f"{path}.z"]
            d_scores = a[f"{path}.scores.grad"]
            yield f"{path}.scores", d_scores.sum(-1), torch.zeros_like(d_scores[..., 0])
            yield f"{path}.weights", (a[f"{path}.weights"] * a[f"{path}.weights.grad"]).sum(-1), (d_z * z).sum(-1)
        elif isinstance(module, FeedForward | GatedFeedForward) and a.get(f"{path}.out.grad") is not None:
            yield from feed_forward_checks(a, path, module, inputs)
        elif isinstance(module, MixtureOfExperts):
            yield from expert_checks(a, path, module)
        elif isinstance(module, RecurrentLayer):
            yield from cell_checks(a, path, module)
        elif isinstance(module, PatchEmbedding):
            yield f"{path}.patch", weight_gradient(a[f"{path}.patch.grad"], a[f"{path}.patches"]), grad(module.projection.weight)
            yield f"{path}.patches", a[f"{path}.patches.grad"], a[f"{path}.patch.grad"] @ module.projection.weight
            if module.cls is not None:
                yield f"{path}.cls", a[f"{path}.cls.grad"].sum((0, 1)), grad(module.cls)
    yield from output_checks(a, model)
    yield from stack_checks(a, model)


def grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def norm_checks(a: Activations, path: str, module: LayerNorm | RmsNorm | BatchNorm) -> Iterator[Check]:
    x, d, n = a[f"{path}.x"], a[f"{path}.normalized.grad"], a[f"{path}.x"].shape[-1]
    yield f"{path}.out", (a[f"{path}.out.grad"] * a[f"{path}.normalized"]).flatten(0, -2).sum(0), grad(module.weight)
    if isinstance(module, BatchNorm):
        yield f"{path}.x", d / a[f"{path}.scale"], a[f"{path}.x.grad"]
        for name in ("mean", "variance"):
            statistic = getattr(module, name).clone().requires_grad_()
            mean, variance = (statistic if each == name else getattr(module, each) for each in ("mean", "variance"))
            y = (x - mean) / (variance + module.eps).sqrt()
            yield f"{path}.{name}", a[f"{path}.{name}.grad"], torch.autograd.grad(y, statistic, d)[0]
        return
    found = d / a[f"{path}.scale"][..., None]
    if isinstance(module, LayerNorm):
        found = found + a[f"{path}.mean.grad"][..., None] / n
        found = found + a[f"{path}.variance.grad"][..., None] * 2 * (x - x.mean(-1, keepdim=True)) / n
    else:
        found = found + a[f"{path}.mean_square.grad"][..., None] * 2 * x / n
    yield f"{path}.x", found, a[f"{path}.x.grad"]
    square = "variance" if isinstance(module, LayerNorm) else "mean_square"
    yield f"{path}.scale", a[f"{path}.scale.grad"] / a[f"{path}.scale"] / 2, a[f"{path}.{square}.grad"]


def attention_checks(a: Activations, path: str, module: Attention, inputs: dict[str, Any]) -> Iterator[Check]:
    q, k, z = (a[f"{path}.{name}"] for name in "qkz")
    weights, d_z = a[f"{path}.weights"], a[f"{path}.z.grad"]
    groups = q.shape[1] // k.shape[1]
    d_v = (weights.transpose(-2, -1) @ d_z).unflatten(1, (-1, groups)).sum(2)
    yield f"{path}.v", d_v, a[f"{path}.v.grad"]
    yield f"{path}.weights", (weights * a[f"{path}.weights.grad"]).sum(-1), (d_z * z).sum(-1)
    yield f"{path}.concat", a[f"{path}.concat.grad"], merged(d_z)
    if isinstance(module.o, nn.Linear):
        yield f"{path}.out", weight_gradient(a[f"{path}.out.grad"], a[f"{path}.concat"]), grad(module.o.weight)
        yield f"{path}.concat", a[f"{path}.concat.grad"], a[f"{path}.out.grad"] @ module.o.weight
        d_z_from_heads = a[f"{path}.head_out.grad"] @ module.o.weight.unflatten(1, (q.shape[1], -1)).movedim(1, 0)
        yield f"{path}.head_out", d_z_from_heads, d_z
    for name in "qkv":
        d = merged(a[f"{path}.{name}_proj.grad"])
        yield f"{path}.{name}_proj", weight_gradient(d, inputs[f"{path}.{name}"]), grad(getattr(module, name).weight)
    if a.get(f"{path}.logsumexp") is None or a.get(f"{path}.dot_products.grad") is None:
        return
    yield f"{path}.logsumexp", a[f"{path}.logsumexp.grad"], -(d_z * z).sum(-1)
    d = a[f"{path}.dot_products.grad"]
    yield f"{path}.dot_products", d @ repeat_kv(k, q.shape[1]), a[f"{path}.q.grad"]
    d_k = (d.transpose(-2, -1) @ q).unflatten(1, (-1, groups)).sum(2)
    yield f"{path}.dot_products", d_k, a[f"{path}.k.grad"]
    yield f"{path}.masked_scores", a[f"{path}.masked_scores.grad"], a[f"{path}.scores.grad"]
    slope = a[f"{path}.scores.grad"]
    if module.softcap is not None:
        s = (q @ repeat_kv(k, q.shape[1]).transpose(-2, -1)) / module.d_head**0.5 / module.softcap
        slope = slope / torch.cosh(s).square()
    yield f"{path}.scores", slope / module.d_head**0.5, d


def feed_forward_checks(a: Activations, path: str, module: FeedForward | GatedFeedForward, inputs: dict[str, Any]) -> Iterator[Check]:
    x, gated = inputs[f"{path}.up"], isinstance(module, GatedFeedForward)
    yield f"{path}.out", a[f"{path}.out.grad"] @ module.down.weight, a[f"{path}.hidden.grad"]
    yield f"{path}.out", weight_gradient(a[f"{path}.out.grad"], a[f"{path}.hidden"]), grad(module.down.weight)
    first = "up" if gated else "pre"
    yield f"{path}.{first}", weight_gradient(a[f"{path}.{first}.grad"], x), grad(module.up.weight)
    if isinstance(module, GatedFeedForward):
        yield f"{path}.pre", weight_gradient(a[f"{path}.pre.grad"], x), grad(module.gate.weight)
        pre = a[f"{path}.pre"].clone().requires_grad_()
        yield f"{path}.gate", torch.autograd.grad(module.activation(pre), pre, a[f"{path}.gate.grad"])[0], a[f"{path}.pre.grad"]


def expert_checks(a: Activations, path: str, module: MixtureOfExperts) -> Iterator[Check]:
    logits = a[f"{path}.router"].clone().requires_grad_()
    gates = module.route(logits).weights.view(a[f"{path}.gates"].shape)
    yield f"{path}.gates", torch.autograd.grad(gates, logits, a[f"{path}.gates.grad"])[0], a[f"{path}.router.grad"]
    if (d := a.get(f"{path}.router_probs.grad")) is not None:
        yield f"{path}.router_probs", torch.autograd.grad(module.router_probs(logits), logits, d)[0], a[f"{path}.router.grad"]
    if module.shared is not None:
        yield f"{path}.out", a[f"{path}.out.grad"].flatten(0, -2), a[f"{path}.shared.out.grad"].flatten(0, -2)


def cell_checks(a: Activations, path: str, module: RecurrentLayer) -> Iterator[Check]:
    """Compare the gradients of biases and weights, summed over all time steps."""
    values: dict[str, Any] = {name: a.get(f"{path}.{name}") for name in "ifgoczrnh"}
    d: dict[str, Any] = {name: a.get(f"{path}.{name}.grad") for name in "ifgoczrnh"}
    rnn: Any = module.rnn
    bias, weight = grad(rnn.bias_hh_l0), grad(rnn.weight_ih_l0)
    if isinstance(module.rnn, nn.LSTM):
        i, f, g, o = (values[name] for name in "ifgo")
        pre = torch.cat([d["i"] * i * (1 - i), d["f"] * f * (1 - f), d["g"] * (1 - g.square()), d["o"] * o * (1 - o)], -1)
        yield f"{path}.c", d["c"] * g, d["i"]
        yield f"{path}.h", d["h"] * values["c"].tanh(), d["o"]
    elif isinstance(module.rnn, nn.GRU):
        r, z, n = (values[name] for name in "rzn")
        d_n = d["n"] * (1 - n.square())
        pre = torch.cat([d["r"] * r * (1 - r), d["z"] * z * (1 - z), d_n], -1)
        bias = torch.cat([bias[: 2 * n.shape[-1]], grad(rnn.bias_ih_l0)[2 * n.shape[-1] :]])
        yield f"{path}.h", d["h"] * (1 - z), d["n"]
    else:
        pre = a[f"{path}.pre.grad"]
        yield f"{path}.h", a[f"{path}.h.grad"] * (1 - a[f"{path}.pre"].tanh().square()), pre
    x = unroll(a, path)
    inputs = x.x if x.order is None else x.x.take_along_dim(x.order, 1)
    yield f"{path}.i", pre.flatten(0, -2).sum(0), bias
    yield f"{path}.f", weight_gradient(pre, inputs), weight


def output_checks(a: Activations, model: Network) -> Iterator[Check]:
    d_logits = a["logits.grad"]
    logits = a["logits"].clone().requires_grad_()
    multi = getattr(model.config, "multi_label", False)
    log_probs = F.logsigmoid(logits) if multi else logits.log_softmax(-1)
    yield "log_probs", torch.autograd.grad(log_probs, logits, a["log_probs.grad"], retain_graph=True)[0], d_logits
    if bool((log_probs.exp()[a["log_probs.grad"] != 0] > 0).all()):  # none underflows
        yield "probs", torch.autograd.grad(log_probs.exp(), logits, a["probs.grad"])[0], d_logits
    if not isinstance(model, TextEmbedderTransformer):
        scale, cap = (getattr(model.config, name, None) for name in ("logit_scale", "logit_softcap"))
        d = d_logits if cap is None else d_logits * (1 - (a["logits"] / cap).square())  # tanh' = 1 - tanh^2
        yield "last_hidden", a["last_hidden.grad"], (scale or 1.0) * d @ model.unembedding.weight
        if hasattr(model, "decoder") and (d := a.get("decoder.out.grad")) is not None:  # by autograd
            yield "last_hidden", a["last_hidden.grad"], d
    else:
        y = a["encoder.out"].clone().requires_grad_()
        pooled = y[:, 0] if model.config.pooling == "cls" else mean_pool(y, a.batch.source)
        yield "pooled", torch.autograd.grad(pooled, y, a["pooled.grad"])[0], a["encoder.out.grad"]


def stack_checks(a: Activations, model: Network) -> Iterator[Check]:
    for path, module in model.named_modules():
        kind = owner_kind(module, path)
        if kind == "stack" and module.norm is not None:
            yield f"{path}.out", a[f"{path}.out.grad"], a[f"{path}.norm.out.grad"]
        if kind == "recurrent stack" and a.get(f"{path}.maxout") is not None:
            yield f"{path}.maxout", a[f"{path}.maxout.grad"], a[f"{path}.out.grad"]
        if kind == "recurrent stack" and a.get(f"{path}.attentional") is not None:
            d = a[f"{path}.attentional.grad"]
            c = a[f"{path}.cross.z"][:, 0]
            x = torch.cat([c, a[f"{path}.layers.{len(module.layers) - 1}.h"]], -1)
            yield f"{path}.attentional", weight_gradient(d * (1 - a[f"{path}.attentional"].square()), x), grad(module.output_proj.weight)
        if kind == "embedding" and path == "embedding" and getattr(model, "unembedding", module.tokens).weight is not module.tokens.weight:
            tokens = sequences_of(a, path).tokens
            found = torch.zeros_like(module.tokens.weight).index_add(0, tokens.flatten(), a[f"{path}.token.grad"].flatten(0, 1))
            expected = grad(module.tokens.weight)
            used = torch.arange(len(expected)) != getattr(module.tokens, "padding_idx", None)
            yield f"{path}.token", found[used] * module.scale, expected[used]


def check_gradients(model: Network, batch: Any) -> set[str]:
    """Compare the gradients of a pass; return the addresses that were compared."""
    model.requires_grad_()
    listed = list_names(model.config)
    sites = [each.address for each in listed if each.cost == "exists"]
    logits, a = gradient_pass(model, batch, sites)
    assert a.gradients is not None
    model.zero_grad(set_to_none=False)
    with module_outputs(model) as (inputs, _):
        if isinstance(model, TextEmbedderTransformer):  # the sites are those of the source texts
            again = model.last_hidden_state(batch) @ model.vectors(batch.target).detach().T / model.config.temperature
        else:
            again = model(batch)
    default_loss(model, again, *a.gradients.answers).backward()  # type: ignore[attr-defined]
    inputs = {path: x.detach() for path, x in inputs.items() if isinstance(x, Tensor)}
    assert torch.allclose(logits, again, **CLOSE)
    compared = set[str]()
    for names, found, expected in checks(a, model, inputs):
        assert torch.allclose(found, expected, **CLOSE), (names, (found - expected).abs().max())
        compared.add(names)
    for each in listed:
        value, d = a.get(each.address), a.get(f"{each.address}.grad")
        if value is not None and d is not None:
            assert d.shape == value.shape and (each.quantity.name == "probs" or bool(d.isfinite().all())), each.address
        assert value is None or d is not None or each.quantity.name in MAY_LACK, each.address
    return compared


MAY_LACK = {"chosen", "selected", "router_probs", "position", "n_tokens"}


@pytest.mark.parametrize("number", every(9, range(len(SET_TEXTS)), long=3), ids=lambda number: TEXTS[number])
def test_gradients_follow_the_chain_rule(number: int) -> None:
    config = described(SET_TEXTS[number])
    assert check_gradients(built(config), batch_for(config))


@pytest.mark.parametrize("number", every(12, range(len(SET_NETWORKS)), long=3), ids=lambda number: IMAGES[number])
def test_gradients_of_an_image_follow_the_chain_rule(number: int) -> None:
    config = described_network(SET_NETWORKS[number])
    assert check_gradients(built(config), image_batch(config))


def decoder() -> tuple[Network, Any]:
    config = described(SET_TEXTS[3])
    return built(config), batch_for(config)


def test_a_trace_has_the_gradient_of_a_name() -> None:
    """The gradient of the queries for a loss of one's own is that of autograd, also for some heads and positions."""
    model, batch = decoder()
    of_token_1: Any = {"loss": lambda logits: logits[:, 1].square().sum()}
    logits, found = trace(model, batch, ["attn.weights.grad", "logits.grad"], **of_token_1)
    expected = torch.zeros_like(logits)
    expected[:, 1] = 2 * logits[:, 1]
    assert torch.equal(found["logits.grad"], expected)
    whole = found["decoder.blocks.0.attn.weights.grad"]
    assert not whole[:, :, 2:].any()  # a causal model: later queries do not matter
    _, part = trace(model, batch, ["attn.weights.grad"], blocks=[0], heads=[1], positions=[1], **of_token_1)
    assert list(part) == ["decoder.blocks.0.attn.weights.grad"]
    assert torch.equal(part["weights.grad"], whole[:, 1:2, 1:2])


def test_names_without_a_gradient_and_unknown_ones_are_refused() -> None:
    model, batch = decoder()
    with pytest.raises(ConfigError, match=r"found 'wieghts'; the nearest are"):
        trace(model, batch, ["wieghts.grad"])
    with pytest.raises(ConfigError, match=r"found 'ff.chosen.grad', .* whole numbers or truth values"):
        trace(model, batch, ["logits", "ff.chosen.grad"])
    _, found = trace(model, batch, ["ff.router_probs.grad", "ff.gates.grad"])  # the gates are no function of these probabilities
    assert found.idle and not set(found.idle) & set(found) and all(address.endswith("gates.grad") for address in found)


def test_the_loss_of_a_text_is_that_of_its_next_tokens() -> None:
    """The last token of a text and padding have no next token."""
    config = described(SET_TEXTS[3])
    model, batch = built(config), batch_for(config)
    tokens, segments = batch.decoder_input.tokens, batch.decoder_input.segments
    logits, found = trace(model, batch, ["logits.grad"])
    expected, pairs = (
        torch.zeros_like(logits),
        [(r, t) for r, row in enumerate(segments.tolist()) for t in range(len(row) - 1) if 0 < row[t] == row[t + 1]],
    )
    for r, t in pairs:
        expected[r, t] = logits[r, t].softmax(-1)
        expected[r, t, tokens[r, t + 1]] -= 1
    assert torch.allclose(found["logits.grad"], expected / len(pairs), **CLOSE)


def test_frozen_models_have_the_same_gradients() -> None:
    """Also before the first site: at the patches of an image."""
    config = described_network(SET_NETWORKS[0])
    model, batch = built(config), image_batch(config)
    names = ["embedding.patches.grad", "embedding.patch.grad", "attn.weights.grad"]
    model.requires_grad_()
    expected = dict(trace(model, batch, names)[1])
    _, found = trace(model.requires_grad_(False), batch, names)
    assert not found.idle and all(torch.allclose(found[name], x, **CLOSE) for name, x in expected.items())


def test_padding_has_no_gradient() -> None:
    config = described(SET_TEXTS[14])  # a masked language model
    model, batch = built(config), batch_for(config)
    _, found = trace(model, batch, ["logits.grad"])
    padding = batch.source.segments == 0
    assert padding.any() and not found["logits.grad"][padding].any() and found["logits.grad"][~padding].any()


def test_the_loss_must_depend_on_the_logits_also_in_inference_mode() -> None:
    model, batch = decoder()
    with pytest.raises(ConfigError, match="loss: expected a single number that depends on the logits"):
        trace(model, batch, ["logits.grad"], loss=lambda logits: torch.zeros(()))
    with torch.inference_mode():
        _, found = trace(model, batch, ["attn.q.grad"])
    assert all(bool(x.any()) for x in found.values())


def test_statistics_of_batch_norm_that_change_are_noticed() -> None:
    config = described(SET_TEXTS[14] | {"norm": "batchnorm", "norm_placement": "pre"})
    model, batch = built(config), batch_for(config)
    _, found = trace(model, batch, ["attn_residual.norm.out"])
    next(module for module in model.modules() if isinstance(module, BatchNorm)).mean.add_(1.0)
    with pytest.raises(ConfigError, match="the weights of the traced pass"):
        dict(found)


class _LargestTensor(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("number", every(3, [n for n, fields in enumerate(SET_TEXTS) if fields["kind"] in ("decoder", "seq2seq")]))
def test_gradients_of_maps_for_heads_and_positions_are_parts_of_the_whole(number: int) -> None:
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    names = [f"*.{name}.grad" for name in ("weights", "scores", "masked_scores", "logsumexp", "dot_products")]
    listed = {each.address for each in list_names(config)}
    names = [name for name in names if any(address.endswith(name[1:-5]) for address in listed)]
    _, whole = trace(model, batch, names)
    heads, positions = [1, 0], [1, 0]
    _, part = trace(model, batch, names, heads=heads, positions=positions)
    assert list(part) == list(whole)
    for address, x in part.items():
        expected = whole[address][:, heads if whole[address].shape[1] > 1 else [0, 0]][:, :, positions]
        assert torch.allclose(x, expected, rtol=1e-10, atol=1e-12), address


def test_gradients_of_a_row_of_a_long_map_take_the_memory_of_a_row() -> None:
    """No tensor of the size of a map is made, nor of all heads."""
    n = 512
    fields = {"vocab_size": 20, "d_model": 32, "n_layers": 1, "n_heads": 4, "d_ff": 32, "max_seq_len": n, "dropout": 0.0}
    model = build_model(DecoderConfig.model_validate(fields | {"position": {"kind": "rotary"}, "attention": {"softcap": 5.0}}))
    tokens = torch.randint(4, 20, (1, n), generator=torch.Generator().manual_seed(1))
    names = [f"attn.{name}.grad" for name in ("weights", "scores", "masked_scores", "logsumexp", "dot_products")]
    _, whole = trace(model, tokens, names)
    expected = {address: x[:, 2:3, 5:6] for address, x in whole.items()}
    _, found = trace(model, tokens, names, heads=[2], positions=[5])
    with _LargestTensor() as largest:
        values = dict(found)
    assert largest.elements <= 4 * n * 8  # queries, keys or values of all heads
    assert all(torch.allclose(x, expected[address], rtol=1e-4, atol=1e-9) for address, x in values.items())
