"""Observers with torch.compile, activation checkpointing, threads, and cached decoding."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.models.test_compile import TRACER
from transom.config.model import DecoderConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.layers.observe import ActivationRecorder, Edit
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer

NON_LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf Tensor is being accessed:UserWarning"
"""PyTorch's compiler reads it on its inputs."""

RECOMPILE_LIMIT = 8
"""PyTorch's default."""

EDITED = "decoder.blocks.5.attn.z"


def decoder(**fields: Any) -> DecoderOnlyTransformer:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 12, "vocab_size": 11, "norm_placement": "pre", "dropout": 0.0}
    model = build_model(DecoderConfig.model_validate(sizes | fields))
    assert isinstance(model, DecoderOnlyTransformer)
    return model


def batch() -> LanguageBatch:
    text = PaddedSequences.pad([[1, 5, 6, 7], [1, 8, 3]])
    return LanguageBatch(text, text.tokens, (0, 1))


def recorder(kind: str) -> ActivationRecorder | None:
    if kind == "off":
        return None
    edits = {EDITED: Edit(torch.full((), 0.5))} if kind == "edited" else {}
    return ActivationRecorder(["*.attn.q"] if kind == "some" else ["*"], edits)


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, NON_LEAF)
@pytest.mark.parametrize("kind", ["off", pytest.param("some", marks=pytest.mark.soak), "all", "edited"])
@pytest.mark.parametrize("how", ["whole", "block by block"])
def test_a_compiled_model_misses_no_site(how: str, kind: str) -> None:
    model, seen, compilations = decoder().double().train(), recorder(kind), list[Any]()
    expected = model(batch(), seen).detach()

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Any:
        compilations.append(graph)
        return graph.forward

    torch.compiler.reset()
    if how == "whole":
        model.compile(fullgraph=True, backend=backend)
    else:
        for block in model.decoder.blocks:
            block.compile(fullgraph=True, backend=backend)
    for _ in range(3):
        again = recorder(kind)
        assert torch.allclose(model(batch(), again), expected, rtol=0, atol=1e-10)
        if seen is not None and again is not None:
            assert again.activations.keys() == seen.activations.keys()
            for address, x in seen.activations.items():
                assert torch.allclose(again.activations[address], x, rtol=0, atol=1e-10), address
    if kind == "edited":
        assert again is not None and (again.activations[EDITED] == 0.5).all()
    assert len(compilations) == (2 if how != "whole" and kind == "edited" else 1) < RECOMPILE_LIMIT


def test_a_block_that_is_computed_again_is_recorded_once_and_edited_twice() -> None:
    model, expected, found = decoder(n_layers=2).train(), recorder("edited"), recorder("edited")
    assert expected is not None and found is not None
    expected.edits = found.edits = {"decoder.blocks.1.attn.z": Edit(torch.full((), 0.5))}
    model(batch(), expected).square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    for block in model.decoder.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    logits, n_views = model(batch(), found), len(found.views)
    recorded = dict(found.activations)
    logits.square().sum().backward()
    assert len(found.views) == n_views and len(found.passes) == 1
    assert all(found.activations[address] is x for address, x in recorded.items())
    assert {address: x.tolist() for address, x in recorded.items()} == {address: x.tolist() for address, x in expected.activations.items()}
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True) if p.grad is not None and g is not None)


@pytest.mark.long
@torch.no_grad()
def test_two_threads_share_a_model_and_one_is_observed() -> None:
    model = decoder().eval()
    plain = model(batch())
    edits = {EDITED: Edit(torch.zeros(()))}
    edited = model(batch(), ActivationRecorder((), edits))
    assert not torch.equal(plain, edited)

    @torch.no_grad()
    def observed(_: int) -> tuple[Tensor, int]:
        seen = ActivationRecorder(["*"], edits)
        return model(batch(), seen), len(seen.activations)

    @torch.no_grad()
    def unobserved(_: int) -> Tensor:
        logits: Tensor = model(batch())
        return logits

    with ThreadPoolExecutor(2) as pool:
        ones, others = pool.map(observed, range(30)), pool.map(unobserved, range(30))
        assert all(torch.equal(other, plain) for other in others)
        found = list(ones)
    assert all(torch.equal(logits, edited) for logits, _ in found) and len({n for _, n in found}) == 1


@pytest.mark.parametrize("position", ["rotary", "alibi", "learned"])
@torch.no_grad()
def test_decoding_with_a_cache_is_observed_a_pass_per_step(position: str) -> None:
    model, n_read = decoder(n_layers=2, position=position).eval(), 3
    tokens = torch.tensor([[1, 5, 6, 7, 2, 9]])
    whole, steps = ActivationRecorder(["*"]), ActivationRecorder(["*"])
    logits = model(LanguageBatch(PaddedSequences.pad(tokens.tolist()), tokens, (0,)), whole)
    cache = model.start(model.encode(PaddedSequences.pad(tokens[:, : n_read + 1].tolist())), 1, 4)
    for i in range(n_read, 6):
        assert torch.allclose(model.step(tokens[:, i : i + 1], cache, steps)[:, 0], logits[:, i], atol=1e-5)
    assert len(steps.passes) == 6 - n_read
    for i, step in enumerate(steps.passes, n_read):
        assert step.keys() == whole.activations.keys()
        for address, x in step.items():
            assert torch.allclose(x, whole.activations[address][..., i : i + 1, :], atol=1e-5), address


def shard(module: nn.Linear, first: int, last: int, rows: bool) -> None:
    """Keep the outputs of a linear layer (``rows``), or its inputs, from ``first`` to ``last``."""
    with torch.no_grad():
        module.weight = nn.Parameter(module.weight[first:last] if rows else module.weight[:, first:last])
        if module.bias is not None:
            module.bias = nn.Parameter(module.bias[first:last] if rows else module.bias * (first == 0))


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
@pytest.mark.parametrize("n_kv_heads", [6, 3])
@torch.no_grad()
def test_layers_that_hold_a_shard_of_the_heads_add_up_to_the_whole(position: str, n_kv_heads: int) -> None:
    """Each shard has rows of W_Q, W_K, W_V, and columns of W_O, sinks, slopes and the table of relative biases."""
    attention = {"sinks": True, "qk_norm": "rmsnorm", "softcap": 9.0}
    fields = {
        "n_layers": 1,
        "n_heads": 6,
        "n_kv_heads": n_kv_heads,
        "d_head": 4,
        "d_value": 5,
        "position": position,
        "attention": attention,
    }
    whole, text, x = decoder(**fields).double().eval(), batch().decoder_input, torch.randn(2, 4, 16, dtype=torch.float64)
    for parameter in whole.parameters():
        nn.init.normal_(parameter)
    expected, _ = whole.decoder.blocks[0].attn(x, whole.context(text).for_block(0).attention)
    found, n = torch.zeros_like(expected), 3
    for rank in range(n):
        model = decoder(**fields).double().eval()
        model.load_state_dict(whole.state_dict())
        attn, at, heads, kv = model.decoder.blocks[0].attn, model.embedding.position, 6 // n, n_kv_heads // n
        shard(attn.q, rank * heads * 4, (rank + 1) * heads * 4, rows=True)
        shard(attn.k, rank * kv * 4, (rank + 1) * kv * 4, rows=True)
        shard(attn.v, rank * kv * 5, (rank + 1) * kv * 5, rows=True)
        assert isinstance(attn.o, nn.Linear)
        shard(attn.o, rank * heads * 5, (rank + 1) * heads * 5, rows=False)
        own = slice(rank * heads, (rank + 1) * heads)
        attn.sinks = nn.Parameter(attn.sinks[own])
        if position == "alibi":
            at.slopes = at.slopes[own]
        if position == "relative":
            at.table.weight = nn.Parameter(at.table.weight[:, own])
        z, values = attn(x, model.context(text).for_block(0).attention)
        assert values.shape[1] == kv and z.shape == expected.shape
        found += z
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
