"""Activation checkpointing: the same steps bit for bit, in every family and with every source of random numbers, for less memory."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.tiers import every
from tests.training.test_keyed_dropout import DECODER, ENCODER, MODELS, MOE, SEQ2SEQ, SGD, N, batch, drawn
from tests.training.test_train_loop import recipe, sit
from transom.checkpoints.run_files import RECIPE, WEIGHTS
from transom.checkpoints.tensors import read_tensors
from transom.config.adapter import LoraConfig
from transom.config.architecture import ModelConfig
from transom.config.model import AnyModel, DecoderConfig, Seq2SeqConfig
from transom.config.parallel import ParallelConfig
from transom.config.recipe import load_recipe
from transom.config.training import EarlyExitLossConfig, NoAverageConfig, TextTrainingConfig, TrainingConfig
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import Batch, ContrastiveBatch, PaddedSequences
from transom.layers.block import Block
from transom.models.apply_lora import apply_lora
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.cluster import CLUSTERS
from transom.planning.live_memory import SavedBytes
from transom.planning.training_bytes import StepMemory
from transom.tasks.language.schema import LanguageTrainingConfig
from transom.tasks.translation.schema import TranslationTrainingConfig
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.memory_trial import try_steps
from transom.training.objectives.early_exit import add_early_exit_losses
from transom.training.objectives.objective import CrossEntropy, Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.optimizer import build_optimizer
from transom.training.out_of_memory import out_of_memory_error
from transom.training.plan_run import PlanOptions, plan_run, predict_bytes
from transom.training.rehearse import RehearsalOptions, rehearse
from transom.training.simulated_step import BatchShape, build_batch, measure_step, simulate_step
from transom.training.train_step import StepResult, TrainStep

TRAINING = TrainingConfig(optimizer=SGD, max_grad_norm=None, label_smoothing=0.1)
BALANCED = MOE | {"z_loss_coef": 0.1, "capacity_factor": 0.8}
CASES: dict[str, dict[str, Any]] = MODELS | {
    "embedder": ENCODER | {"kind": "text-embedder"},
    "capacity": SEQ2SEQ | {"feed_forward": BALANCED},
    "bias": DECODER | {"feed_forward": BALANCED | {"load_balancing": {"kind": "bias"}}},
    "values": DECODER | {"attention": {"value_residual": "learned", "qk_norm": "rmsnorm", "sinks": True}},
    "linear": DECODER | {"attention": {"approximation": "linear"}, "attention_dropout": 0.0},
    "sandwich": SEQ2SEQ | {"norm_placement": "sandwich", "position": "relative"},
    "batchnorm": ENCODER | {"kind": "encoder", "norm": "batchnorm"},
}
FIRST = ("decoder", "experts", "depths", "vit", "embedder", "capacity", "batchnorm", "recurrent")


def batch_of(kind: str, rows: list[int]) -> Batch:
    if kind != "text-embedder":
        return batch(kind, rows, 9)
    texts = [PaddedSequences.pad([drawn(seed, longest)[i] for i in rows]) for seed, longest in ((1, 9), (2, 5))]
    return ContrastiveBatch(*texts, tuple(rows))


def steps(
    fields: dict[str, Any],
    checkpointed: bool,
    n_micro_batches: int = 3,
    dtype: torch.dtype = torch.float32,
    training: TrainingConfig = TRAINING,
    objective: Any = lambda model: CrossEntropy(0.1),
    adapter: LoraConfig | None = None,
) -> tuple[list[StepResult], Mapping[str, Tensor]]:
    """Return the results of two steps and the weights and buffers after them."""
    torch.manual_seed(1)
    model: Network = build_model(TypeAdapter(AnyModel).validate_python(fields)).train()
    if adapter is not None:
        apply_lora(model, adapter)
    chosen: Objective = objective(model.train())
    if checkpointed:
        checkpoint_activations(model)
    parts = [batch_of(fields["kind"], list(range(i, N, n_micro_batches))) for i in range(n_micro_batches)]
    for each in parts:
        if hasattr(each, "pixels"):
            vars(each)["pixels"] = each.pixels.float()
    train_step = TrainStep(model, build_optimizer(model, SGD, dtype), training, dtype, chosen)
    return [train_step.step(parts, 0.5) for _ in range(2)], {name: x.clone() for name, x in model.state_dict().items()}


def check_the_same(fields: dict[str, Any], **options: Any) -> None:
    (results, weights), (expected, own) = (steps(fields, checkpointed, **options) for checkpointed in (True, False))
    assert results == expected and not any(result.skipped for result in results)
    assert weights.keys() == own.keys() and all(torch.equal(weights[name], x) for name, x in own.items())


@pytest.mark.parametrize("name", every(2, CASES))
def test_steps_are_the_same_bit_for_bit(name: str) -> None:
    check_the_same(CASES[name])


@pytest.mark.parametrize("name", FIRST)
def test_with_other_random_numbers(name: str) -> None:
    check_the_same(CASES[name], training=TRAINING.model_copy(update={"dropout_rng": "generator"}))


@pytest.mark.parametrize("name", FIRST)
def test_in_bfloat16(name: str) -> None:
    check_the_same(CASES[name], dtype=torch.bfloat16)


def test_with_r_drop_and_a_loss_after_every_block() -> None:
    training = TranslationTrainingConfig(optimizer=SGD, max_grad_norm=None, r_drop=2.0)
    check_the_same(SEQ2SEQ, training=training, objective=lambda model: choose_text_loss(training))
    exits = LanguageTrainingConfig(optimizer=SGD, early_exit_loss=EarlyExitLossConfig())
    check_the_same(DECODER, training=exits, objective=lambda model: add_early_exit_losses(CrossEntropy(0.1), model, exits.early_exit_loss))


def test_with_an_adapter_whose_base_is_frozen() -> None:
    check_the_same(DECODER, adapter=LoraConfig(rank=2, dropout=0.3, target_modules=["attn.q", "ff.up"]))


def test_only_training_passes_with_gradients_compute_blocks_again() -> None:
    model = build_model(TypeAdapter(AnyModel).validate_python(DECODER)).train()
    checkpoint_activations(model)
    calls: list[bool] = []
    network = next(module for module in model.modules() if isinstance(module, Block)).ff
    network.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    hidden, _ = model.logit_factors(batch("decoder", [0, 1], 9))
    assert len(calls) == 1
    hidden.sum().backward()
    assert len(calls) == 2
    saved = {training: SavedBytes() for training in (True, False)}
    for training, seen in saved.items():
        with saved_tensors_hooks(seen.pack, lambda x: x):
            model.train(training).logit_factors(batch("decoder", [0, 1], 9))
    assert saved[False].total > 2 * saved[True].total > 0, "in evaluation nothing is computed again"
    n = len(calls)
    with torch.no_grad():
        model.train().logit_factors(batch("decoder", [0, 1], 9))
    assert len(calls) == n + 1


CONFIG = DecoderConfig(d_model=16, n_heads=2, n_layers=3, d_ff=40, vocab_size=50, max_seq_len=16)
SHAPE = BatchShape(4, 0, 16)


def measured(config: ModelConfig, shape: BatchShape) -> StepMemory:
    model = build_model(config).train()
    checkpoint_activations(model)
    return measure_step(model, build_batch(config, shape), torch.float32, shape)


@pytest.mark.parametrize("n", every(2, [1, 3]))
def test_a_step_needs_what_is_predicted(n: int) -> None:
    shape = replace(SHAPE, n_micro_batches=n)
    found, without = simulate_step(CONFIG, shape, torch.float32, recompute=True), simulate_step(CONFIG, shape, torch.float32)
    assert found is not None and without is not None
    assert found == measured(CONFIG, shape) and found.saved < 0.4 * without.saved and found.peak < without.peak


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        Seq2SeqConfig.model_validate(SEQ2SEQ | {"max_seq_len": 16}),
        VisionTransformerConfig(image_size=16, patch_size=4, d_model=16, n_heads=2, n_layers=2, d_ff=24, classes=("a", "b", "c")),
    ],
    ids=lambda config: config.kind,
)
def test_other_families_need_what_is_predicted(config: Any) -> None:
    assert simulate_step(config, BatchShape(3, 7, 5), torch.float32, recompute=True) == measured(config, BatchShape(3, 7, 5))


@pytest.mark.long
@pytest.mark.parametrize(("rows", "d_ff", "vocab_size"), [(24, 16, 50), (1, 900, 50), (8, 64, 5000), (2, 64, 2000)])
def test_many_layers_are_extrapolated_exactly(rows: int, d_ff: int, vocab_size: int) -> None:
    """With few layers the peak is at the loss over a large vocabulary, with many at the end of the backward pass."""
    config = CONFIG.model_copy(update={"n_layers": 23, "d_ff": d_ff, "vocab_size": vocab_size})
    shape = replace(SHAPE, rows=rows)
    assert simulate_step(config, shape, torch.float32, recompute=True) == measured(config, shape)


@pytest.mark.long
def test_a_training_uses_less_memory_as_the_plan_says() -> None:
    """The tensors have 4 MiB or more: malloc keeps smaller ones that are freed."""
    config = DecoderConfig(d_model=256, n_heads=4, n_layers=4, d_ff=1024, vocab_size=500, max_seq_len=256, dropout=0.0)
    training, shape = TextTrainingConfig(optimizer=SGD, average=NoAverageConfig()), BatchShape(16, 0, 256)
    used, predicted = [], []
    for choice in ("none", "blocks"):
        chosen = training.model_copy(update={"activation_checkpointing": choice})
        used.append(try_steps(config, chosen, shape, "fp32", None, steps=2).resident)
        predicted.append(predict_bytes(config, chosen, shape, torch.float32).activations)
    assert used[1] < 0.6 * used[0]
    assert used[0] - used[1] == pytest.approx(predicted[0] - predicted[1], rel=0.1)


@pytest.mark.long
def test_a_plan_and_a_rehearsal_know_it() -> None:
    training = TextTrainingConfig(batch_tokens=4 * 16, optimizer=SGD)
    chosen = training.model_copy(update={"activation_checkpointing": "blocks"})
    options = PlanOptions(precision="fp32", flops_per_second=1e12, device_bytes=1 << 20)
    small, large = (plan_run("", CONFIG, each, options) for each in (chosen, training))
    assert small.memory.activations < large.memory.activations and small.time is not None and large.time is not None
    assert 1.2 < small.time.flops_per_step / large.time.flops_per_step < 4 / 3
    needs = f"training.activation_checkpointing = 'blocks' it needs {small.memory.total / 2**30:.3g} GiB"
    assert any(needs in note for note in large.notes) and not any(needs in note for note in small.notes)
    cluster = RehearsalOptions(CLUSTERS["h100"], precision="fp32", steps=False)
    layout = ParallelConfig(tensor=2)
    few, many = (rehearse("", CONFIG, each, layout, cluster).ranks[0] for each in (chosen, training))
    assert few.memory.activations < many.memory.activations
    tight = RehearsalOptions(replace(CLUSTERS["h100"], device_bytes=many.memory.total - 1), precision="fp32", steps=False)
    assert any("'blocks' a rank needs at most" in note for note in rehearse("", CONFIG, training, layout, tight).notes)
    assert few.seconds.compute == pytest.approx(4 / 3 * many.seconds.compute) and few.seconds.waiting > many.seconds.waiting


def test_missing_memory_names_it_where_it_helps() -> None:
    training = TextTrainingConfig()
    field = "training.activation_checkpointing = 'blocks'"
    assert field in str(out_of_memory_error("", 1, training, CONFIG)) and field in str(out_of_memory_error("", 9, training, CONFIG))
    assert field not in str(out_of_memory_error("", 9, training.model_copy(update={"activation_checkpointing": "blocks"}), CONFIG))
    with pytest.raises(ValidationError, match="expected a model with blocks, found"):
        recipe(model={"kind": "recurrent-seq2seq"}, activation_checkpointing="blocks")


@pytest.mark.long
def test_a_run_with_it_is_the_run_without_it_and_may_begin_it_when_it_is_resumed(tmp_path: Path) -> None:
    """Weights of the checkpoints and the run's ID are equal, so that a run short of memory can go on with it."""
    options: dict[str, Any] = {"precision": "fp32", "average": "none", "validate_bleu": 0}
    sit(tmp_path / "without", max_steps=4, **options)
    sit(tmp_path / "with", max_steps=2, **options)
    sit(tmp_path / "with", max_steps=4, activation_checkpointing="blocks", **options)
    runs = [
        (read_tensors(tmp_path / name / WEIGHTS), json.loads((tmp_path / name / "config.json").read_text())) for name in ("without", "with")
    ]
    assert runs[0][1]["run"] == runs[1][1]["run"] and runs[0][0].keys() == runs[1][0].keys()
    assert all(torch.equal(x, runs[1][0][name]) for name, x in runs[0][0].items())
    assert load_recipe(tmp_path / "with" / RECIPE)[0].training.recompute
