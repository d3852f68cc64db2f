"""LoRA with any components: the model starts unchanged, only new parameters train, and merging gives a model without LoRA."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.combinations import ENCODERS, FAMILIES, batch_for, combinations, described
from tests.models.test_combinations import CLOSE, built
from tests.models.test_vision import NETWORKS, batch_of
from tests.models.test_vision import described as described_images
from transom.config.adapter import LoraConfig
from transom.config.architecture import ModelConfig
from transom.config.training import AdamConfig, AdamWConfig, TrainingConfig
from transom.data.batch import Batch, ImageBatch
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.errors import ConfigError
from transom.inspection.activation_sites import list_sites
from transom.layers.lora import LoraLinear
from transom.layers.observe import ActivationRecorder
from transom.models.apply_lora import apply_lora, merge_lora
from transom.planning.adapters import adaptable_modules, count_adapter_parameters
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_state import optimizer_tensors, trainable_tensors
from transom.training.train_step import TrainStep

VISION = NETWORKS.filter(lambda fields: fields["kind"] == "vision-transformer")
EVERY = st.one_of(combinations(FAMILIES + ENCODERS), VISION).filter(lambda fields: fields["norm"] != "batchnorm")


def read(fields: dict[str, Any]) -> tuple[ModelConfig, Batch]:
    """Return the configuration of a model of any family, and a batch for it."""
    if fields["kind"] == "vision-transformer":
        config = described_images(fields)
        return config, batch_of(config)
    text = described(fields)
    return text, batch_for(text)


def component_for(config: ModelConfig, seed: int, dropout: float = 0.0) -> LoraConfig:
    """Draw some linear layers of a model."""
    names = list(adaptable_modules(config))
    chosen = [name for i, name in enumerate(names) if (seed >> i) & 1] or names[:1]
    return LoraConfig.model_validate({"rank": 1 + seed % 3, "alpha": 5.0, "target_modules": chosen, "dropout": dropout})


@pytest.mark.long
@settings(max_examples=25)
@given(EVERY, st.integers(0, 2**31))
@torch.no_grad()
def test_it_starts_as_it_was_and_amounts_to_a_plain_model(fields: dict[str, Any], seed: int) -> None:
    config, batch = read(fields)
    plain = built(config)
    adapted, component = copy.deepcopy(plain), component_for(config, seed)
    apply_lora(adapted, component)
    assert torch.allclose(adapted(batch), plain(batch), **CLOSE)
    torch.manual_seed(seed)
    for name, x in trainable_tensors(adapted).items():
        if name.endswith("lora_b"):
            x.normal_()
    recorder = ActivationRecorder(["*"])
    found = adapted(batch, recorder)
    assert not torch.allclose(found, plain(batch), **CLOSE)
    whole = merge_lora(adapted, trainable_tensors(adapted))
    assert whole.keys() == trainable_tensors(plain).keys()
    for name, x in trainable_tensors(plain).items():
        x.copy_(whole[name])
    assert torch.allclose(plain(batch), found, **CLOSE)
    known = {site.address for site in list_sites(config)}
    assert set(recorder.activations) <= known
    idle = known - set(recorder.activations)  # experts that no token chose, and whole blocks, where tokens choose those
    assert config.depth.kind == "mod" or all("experts" in address for address in idle)


@pytest.mark.long
@settings(max_examples=25)
@given(EVERY, st.integers(0, 2**31), st.sampled_from(["adam", "adamw"]))
def test_only_low_rank_maps_learn_and_they_are_counted(fields: dict[str, Any], seed: int, optimizer: str) -> None:
    config, batch = read(fields)
    model, component = built(config).float().train(), component_for(config, seed, dropout=0.3)
    if isinstance(batch, ImageBatch):
        batch = replace(batch, pixels=batch.pixels.float())
    apply_lora(model, component)
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(name.rsplit(".", 1)[1] in ("lora_a", "lora_b") for name in learning)
    assert sum(p.numel() for p in learning.values()) == count_adapter_parameters(config, component)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    chosen = build_optimizer(model, AdamConfig() if optimizer == "adam" else AdamWConfig())
    stepper = TrainStep(model, chosen, TrainingConfig(max_grad_norm=None, label_smoothing=0.0), torch.float32, CrossEntropy(0.0))
    stepper.step([batch], 3e-3)
    model.eval()
    losses = [stepper.step([batch], 3e-3).loss for _ in range(8)]
    assert losses[-1] < losses[0] or set(component.target_modules) <= {"attn.q", "attn.k", "cross.q", "cross.k"}, (
        "queries and keys may have no effect here"
    )
    for name, x in model.state_dict().items():
        assert torch.equal(x, before[name]) or name in learning, name
    assert {name.rpartition(".")[0] for name in optimizer_tensors(model, chosen)} <= learning.keys()


def test_the_formula() -> None:
    torch.manual_seed(1)
    layer = LoraLinear(torch.nn.Linear(5, 3).double(), LoraConfig(rank=2, alpha=6.0))
    layer.lora_b.data.normal_()
    x = torch.randn(4, 5, dtype=torch.float64)
    w, b, low, high = layer.weight, layer.bias, layer.lora_a, layer.lora_b
    expected = torch.stack([w @ row + b + 6 / 2 * (high @ (low @ row)) for row in x])
    assert torch.allclose(layer(x), expected, **CLOSE)
    assert torch.allclose(x @ layer.merged_weight(w, low, high).T + b, expected, **CLOSE)


def test_what_is_new_learns_too() -> None:
    config = described(
        {"kind": "text-classifier", "n_layers": 1, "vocab_size": 9, "classes": ["a", "b"], "d_model": 8, "n_heads": 2, "d_ff": 8}
    )
    model = built(config)
    apply_lora(model, LoraConfig(target_modules=("attn.v",)), trainable=["pooler.weight", "unembedding.weight"])
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    assert learning == [f"encoder.blocks.0.attn.v.lora_{x}" for x in "ab"] + ["pooler.weight", "unembedding.weight"]


@torch.inference_mode()
def test_what_it_amounts_to_is_searched_flat() -> None:
    config = described({**FAMILIES[0], "d_model": 8, "n_heads": 2, "d_ff": 8})
    plain = built(config)
    adapted = copy.deepcopy(plain)
    apply_lora(adapted, LoraConfig(target_modules=("attn.q", "cross.v", "ff.up")))
    assert isinstance(build_decoder_backend(plain), FusedSeq2Seq) and build_decoder_backend(adapted) is adapted


@pytest.mark.parametrize(
    ("kind", "on", "message"),
    [
        (
            "decoder",
            ["cross.q"],
            "training.adapter.target_modules: expected maps of this decoder .attn.q, .*ff.down., found 'cross.q'; remove this name",
        ),
        ("encoder", ["ff.gate"], "found 'ff.gate'; remove this name"),
        (
            "recurrent-decoder",
            ["attn.q"],
            "training.adapter: expected a Transformer, .* found 'recurrent-decoder'; remove training.adapter",
        ),
    ],
)
def test_maps_that_are_not_there_are_named(kind: str, on: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        count_adapter_parameters(described({"kind": kind, "vocab_size": 9}), LoraConfig.model_validate({"target_modules": on}))


def test_running_statistics_are_not_adapted() -> None:
    with pytest.raises(ConfigError, match=r"found model\.norm = 'batchnorm', whose running statistics would change; remove training"):
        count_adapter_parameters(described({"kind": "decoder", "vocab_size": 9, "norm": "batchnorm"}), LoraConfig())


def test_families_of_text_and_images_have_maps() -> None:
    assert set(adaptable_modules(described({**FAMILIES[0]}))) == {f"{a}.{x}" for a in ("attn", "cross") for x in "qkvo"} | {
        "ff.up",
        "ff.down",
    }
    assert "ff.gate" in adaptable_modules(described({"kind": "decoder", "vocab_size": 9}))
    vision = described_images({"kind": "vision-transformer", "n_heads": 4})
    assert set(adaptable_modules(vision)) == {f"attn.{x}" for x in "qkvo"} | {"ff.up", "ff.down"}
