"""Recurrent networks against the papers' equations, sentence by sentence and step by step, and against PyTorch's modules."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transom.config.recurrent import RecurrentDecoderConfig, RecurrentSeq2SeqConfig
from transom.data.batch import LanguageBatch, PaddedSequences, translation_batch
from transom.layers.recurrent.recurrent_layers import RecurrentEncoder, RecurrentStack
from transom.models.build import build_model

VOCAB = 9
SOURCES, TARGETS = [[3, 4, 5, 6], [7], [8, 3, 5]], [[5, 8], [7, 3, 4, 6], [3]]
Weights = dict[str, Tensor]

ATTENTIONS: list[Any] = [
    "none",
    "additive",
    {"kind": "additive", "d_attention": 5},
    *({"kind": "luong", "score": score, "input_feeding": fed} for score in ("dot", "general", "concat") for fed in (True, False)),
]
SHAPES: list[dict[str, Any]] = [
    {},
    {"n_encoder_layers": 2, "n_decoder_layers": 3, "bidirectional": False, "d_embedding": 4},
    {"n_encoder_layers": 3, "n_decoder_layers": 2, "tie_embeddings": "all"},
]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def cell(kind: str, w: Weights, name: str, x: Tensor, state: Tensor) -> Tensor:
    """Compute one step of one sentence; an LSTM's state is h and c, concatenated."""
    of_x, of_h = w[f"{name}.weight_ih_l0"], w[f"{name}.weight_hh_l0"]
    b, b_h = w[f"{name}.bias_ih_l0"], w[f"{name}.bias_hh_l0"]
    n = of_h.shape[1]
    gate = lambda i, h: of_x[i * n : (i + 1) * n] @ x + b[i * n : (i + 1) * n] + of_h[i * n : (i + 1) * n] @ h + b_h[i * n : (i + 1) * n]  # noqa: E731
    h = state[:n]
    if kind == "rnn":
        return torch.tanh(gate(0, h))
    if kind == "gru":
        reset, update = sigmoid(gate(0, h)), sigmoid(gate(1, h))
        new = torch.tanh(of_x[2 * n :] @ x + b[2 * n :] + reset * (of_h[2 * n :] @ h + b_h[2 * n :]))
        return update * h + (1 - update) * new
    taken, forget, new, shown = sigmoid(gate(0, h)), sigmoid(gate(1, h)), torch.tanh(gate(2, h)), sigmoid(gate(3, h))
    c = forget * state[n:] + taken * new
    return torch.cat([shown * torch.tanh(c), c])


def read(kind: str, w: Weights, name: str, xs: list[Tensor]) -> list[Tensor]:
    """Run a sentence from left to right; return h at each token."""
    n = w[f"{name}.weight_hh_l0"].shape[1]
    state, found = xs[0].new_zeros(2 * n if kind == "lstm" else n), []
    for x in xs:
        state = cell(kind, w, name, x, state)
        found.append(state[:n])
    return found


def softmax(scores: list[Tensor]) -> list[Tensor]:
    exponents = [torch.exp(score - max(scores)) for score in scores]
    return [exponent / sum(exponents) for exponent in exponents]


def context(c: RecurrentSeq2SeqConfig, w: Weights, s: Tensor, annotations: list[Tensor]) -> Tensor:
    """Attend from one state to all annotations."""
    name = "decoder.cross"
    if c.attention.kind == "additive" or getattr(c.attention, "score", "") == "concat":
        v, of_s, of_h, b = (w[f"{name}.{part}"] for part in ("score.weight", "q.weight", "k.weight", "k.bias"))
        scores = [v[0] @ torch.tanh(of_s @ s + of_h @ h + b) for h in annotations]
    else:
        scores = [s @ (w[f"{name}.k.weight"] @ h if f"{name}.k.weight" in w else h) for h in annotations]
    return sum((a * h for a, h in zip(softmax(scores), annotations, strict=True)), start=torch.zeros_like(annotations[0]))


def by_the_equations(c: RecurrentSeq2SeqConfig, w: Weights, source: list[int], target: list[int]) -> Tensor:
    """Return the logits of one pair; ``source`` ends with the end-of-sequence token, ``target`` begins with the start token."""
    kind, scale, d = c.cell.kind, c.d_embedding**0.5, c.d_model
    xs, ends = [scale * w["source_embedding.tokens.weight"][token] for token in source], []
    for i in range(c.n_encoder_layers):
        ahead = read(kind, w, f"encoder.layers.{i}.forward_rnn.rnn", xs)
        if c.bidirectional:
            back = read(kind, w, f"encoder.layers.{i}.backward_rnn.rnn", xs[::-1])[::-1]
            ends.append(torch.cat([ahead[-1], back[0]]))
            ahead = [torch.cat(both) for both in zip(ahead, back, strict=True)]
        else:
            ends.append(ahead[-1])
        xs = ahead
    n = c.n_decoder_layers
    below = [ends[0]] * max(n - len(ends), 0) + ends[max(len(ends) - n, 0) :]
    states = [torch.tanh(w[f"decoder.bridge.{i}.weight"] @ below[i] + w[f"decoder.bridge.{i}.bias"]) for i in range(n)]
    attention, last, logits = c.attention.kind, torch.zeros(d, dtype=torch.float64), []
    last = last.to(xs[0])
    for token in target:
        y = scale * w["target_embedding.tokens.weight"][token]
        x = y
        if attention == "additive":
            seen = context(c, w, states[-1][:d], xs)
            x = torch.cat([y, seen])
        elif getattr(c.attention, "input_feeding", False):
            x = torch.cat([y, last])
        for i in range(n):
            states[i] = cell(kind, w, f"decoder.layers.{i}.rnn", x, states[i])
            x = states[i][:d]
        if attention == "additive":
            t = w["decoder.maxout.weight"] @ torch.cat([x, y, seen]) + w["decoder.maxout.bias"]
            x = torch.maximum(t[0::2], t[1::2])
        elif attention == "luong":
            x = last = torch.tanh(w["decoder.output_proj.weight"] @ torch.cat([context(c, w, x, xs), x]))
        logits.append(w["unembedding.weight"] @ x)
    return torch.stack(logits)


def config(**fields: Any) -> RecurrentSeq2SeqConfig:
    sizes = {"d_model": 6, "source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "tie_embeddings": "none", "dropout": 0.3}
    return RecurrentSeq2SeqConfig.model_validate(sizes | fields)


def compared(c: RecurrentSeq2SeqConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[tuple[str, Tensor, Tensor]]]:
    """Return the logits at all tokens, and the gradients of every weight, of both implementations."""
    torch.manual_seed(1)
    model = build_model(c).to(dtype).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    batch = translation_batch(SOURCES, TARGETS, range(3))
    weights = {name: p.detach().double().clone().requires_grad_() for name, p in model.named_parameters()}
    if c.tie_embeddings == "all":
        weights |= dict.fromkeys(("target_embedding.tokens.weight", "unembedding.weight"), weights["source_embedding.tokens.weight"])
    ours = model(batch)[batch.loss_mask]
    theirs = torch.cat([by_the_equations(c, weights, [*s, 2], [1, *t]) for s, t in zip(SOURCES, TARGETS, strict=True)])
    direction = torch.randn(theirs.shape, dtype=torch.float64)
    (ours * direction.to(dtype)).sum().backward()
    (theirs * direction).sum().backward()
    gradients = []
    for name, p in model.named_parameters():
        expected = weights[name].grad
        assert p.grad is not None and expected is not None, name
        gradients.append((name, p.grad, expected))
    return ours, theirs, gradients


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_logits_and_gradients_are_those_of_the_equations(kind: str, attention: Any, shape: dict[str, Any]) -> None:
    ours, theirs, gradients = compared(config(cell=kind, attention=attention, **shape), torch.float64)
    assert (ours - theirs).abs().max() <= 1e-10
    for name, found, expected in gradients:
        assert (found - expected).abs().max() <= 1e-10 * max(1, expected.abs().max().item()), name


@pytest.mark.parametrize("widths", [{"tie_embeddings": True}, {"tie_embeddings": False, "d_embedding": 4}], ids=str)
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_a_language_model_is_its_equations(kind: str, widths: dict[str, Any]) -> None:
    torch.manual_seed(1)
    c = RecurrentDecoderConfig.model_validate({"cell": kind, "d_model": 6, "n_layers": 3, "vocab_size": VOCAB, "dropout": 0.3} | widths)
    model = build_model(c).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    w, rows = dict(model.named_parameters(remove_duplicate=False)), [[2, 5, 8, 4, 3], [2, 7]]
    text = PaddedSequences.pad(rows)
    ours = model(LanguageBatch(text, text.tokens, (0, 1)))
    for row, found in zip(rows, ours, strict=True):
        xs = [c.d_embedding**0.5 * w["embedding.tokens.weight"][token] for token in row]
        for i in range(3):
            xs = read(kind, w, f"decoder.layers.{i}.rnn", xs)
        theirs = torch.stack([w["unembedding.weight"] @ x for x in xs])
        assert (found[: len(row)] - theirs).abs().max() <= 1e-10


@pytest.mark.parametrize("attention", ["none", "additive", "luong"])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_in_float32_they_are_within_its_rounding(kind: str, attention: str) -> None:
    ours, theirs, gradients = compared(config(cell=kind, attention=attention, n_encoder_layers=2), torch.float32)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    for name, found, expected in gradients:
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max(), name


@pytest.mark.parametrize("attention", ["none", "additive", "luong"])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_in_bf16_logits_and_gradients_are_near(kind: str, attention: str) -> None:
    torch.manual_seed(1)
    c = config(cell=kind, attention=attention, d_model=64, tie_embeddings="all", n_encoder_layers=2)
    model, batch = build_model(c).eval(), translation_batch([[3, 4, 5, 6] * 6, [7]], [[5, 8] * 12, [7, 3, 4, 6]], range(2))
    found = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = model(batch).float()
        logits[batch.loss_mask].logsumexp(-1).sum().backward()
        found.append([logits.detach()[batch.loss_mask], *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for exact, short in zip(*found, strict=True):
        assert (exact - short).norm() <= 0.1 * exact.norm()


TORCHS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


@pytest.mark.parametrize("kind", TORCHS)
def test_the_encoder_is_torchs_over_packed_sequences(kind: str) -> None:
    torch.manual_seed(1)
    ours = RecurrentEncoder(config(cell=kind, n_encoder_layers=2, d_embedding=4)).double().eval()
    torchs = TORCHS[kind](4, 3, num_layers=2, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            for direction, suffix in ((layer.forward_rnn, ""), (layer.backward_rnn, "_reverse")):
                assert direction is not None
                for name, parameter in direction.rnn.named_parameters():
                    getattr(torchs, name.replace("_l0", f"_l{i}{suffix}")).copy_(parameter)
    x, lengths = torch.randn(3, 5, 4, dtype=torch.float64), torch.tensor([5, 2, 4])
    segments = (torch.arange(5) < lengths[:, None]).long()
    packed, ends = torchs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    theirs = pad_packed_sequence(packed, batch_first=True)[0]
    found, found_ends = ours(x, segments)
    assert torch.allclose(found[segments > 0], theirs[segments > 0], rtol=0, atol=1e-10)
    h = (ends[0] if kind == "lstm" else ends).view(2, 2, 3, 3)  # (layer, direction, batch, width)
    for i in range(2):
        assert torch.allclose(found_ends[i], torch.cat([h[i, 0], h[i, 1]], -1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", TORCHS)
def test_a_stack_is_torchs_whole_or_step_by_step(kind: str) -> None:
    torch.manual_seed(1)
    ours = RecurrentStack(config(cell=kind).cell, [4, 6, 6], 6, 0.0).double()
    torchs = TORCHS[kind](4, 6, num_layers=3, batch_first=True).double()
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            for name, parameter in layer.rnn.named_parameters():
                getattr(torchs, name.replace("_l0", f"_l{i}")).copy_(parameter)
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    theirs, ends = torchs(x)
    whole, states = ours.forward_from(x, [None] * 3)
    assert torch.allclose(whole, theirs, rtol=0, atol=1e-10)
    for n, parts in enumerate(zip(*states, strict=True)):
        assert torch.allclose(torch.stack(parts), ends[n] if kind == "lstm" else ends, rtol=0, atol=1e-10)
    steps = tuple(layer.zero_state(x) for layer in ours.layers)
    for place in range(5):
        steps = ours.step(x[:, place], steps)
        assert torch.allclose(steps[-1][0], theirs[:, place], rtol=0, atol=1e-10)
