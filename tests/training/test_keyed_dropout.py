"""Keyed dropout in training: a step does not depend on micro-batches, and runs keep the random numbers that they were begun with."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from tests.tiers import tiers
from tests.training.test_train_loop import die_and_end_the_same, recipe, sit
from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.adapter import LoraConfig
from transom.config.model import AnyModel
from transom.config.recipe import load_recipe
from transom.config.training import SgdConfig, TrainingConfig
from transom.data.batch import (
    Batch,
    ContrastiveBatch,
    ImageBatch,
    LabeledTextBatch,
    LanguageBatch,
    MaskedBatch,
    PaddedSequences,
    translation_batch,
)
from transom.errors import ConfigError
from transom.layers.dropout import Dropout, KeyedMasks, keyed_dropout
from transom.models.apply_lora import apply_lora
from transom.models.base import Network
from transom.models.build import build_model
from transom.tasks.task import build_training_setup
from transom.tasks.translation.schema import TranslationTrainingConfig
from transom.training.events import StepFinished
from transom.training.objectives.objective import CrossEntropy, forward_pass
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep

GOLDEN = Path(__file__).parents[1] / "checkpoints" / "golden" / "format-1"
N, VOCAB = 6, 17
SGD = SgdConfig(momentum=0.0)
TRAINING = TrainingConfig(optimizer=SGD, max_grad_norm=None, label_smoothing=0.1)
RATES = {"dropout": 0.2, "attention_dropout": 0.1, "feed_forward_dropout": 0.3}
TRANSFORMER: dict[str, Any] = {"d_model": 12, "n_heads": 2, "d_ff": 20, "max_seq_len": 1200, **RATES}
PAIRS: dict[str, Any] = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "n_encoder_layers": 2, "n_decoder_layers": 2}
SEQ2SEQ = TRANSFORMER | PAIRS | {"kind": "seq2seq"}
DECODER = TRANSFORMER | {"kind": "decoder", "n_layers": 2, "vocab_size": VOCAB}
ENCODER = TRANSFORMER | {"n_layers": 2, "vocab_size": VOCAB}
RECURRENT = PAIRS | {"kind": "recurrent-seq2seq", "d_model": 12, "max_seq_len": 32, "dropout": 0.2, "n_decoder_layers": 3}
IMAGES = {"classes": ["a", "b"], "image_size": 8, "patch_size": 4, "channels": 1}
VISION = {name: value for name, value in TRANSFORMER.items() if name != "max_seq_len"} | IMAGES | {"n_layers": 2, "head_dropout": 0.2}
MOE = {"kind": "moe", "n_experts": 3, "n_shared_experts": 1, "load_balancing": {"kind": "aux-loss", "aux_loss_coef": 0.5}}
SPARSE = {"pattern": {"kind": "any", "patterns": [{"kind": "window", "size": 20}, {"kind": "strided", "stride": 20}]}}
MODELS: dict[str, dict[str, Any]] = {
    "seq2seq": SEQ2SEQ,
    "post-norm": SEQ2SEQ | {"norm_placement": "post", "n_kv_heads": 1},
    "parallel": DECODER | {"norm_placement": "parallel", "d_model": 12},
    "decoder": DECODER,
    "experts": DECODER | {"feed_forward": MOE},
    "depths": DECODER | {"depth": {"kind": "mod", "capacity": 0.5, "every": 1}},
    "masked": ENCODER | {"kind": "encoder"},
    "classifier": ENCODER | {"kind": "text-classifier", "classes": ["a", "b"], "pooler_input_dropout": 0.2},
    "tagger": ENCODER | {"kind": "token-tagger", "classes": ["a", "b"]},
    "vit": VISION | {"kind": "vision-transformer"},
    "recurrent": RECURRENT,
    "additive": RECURRENT | {"attention": "additive"},
    "luong": RECURRENT | {"attention": {"kind": "luong", "input_feeding": False}},
    "input-feeding": RECURRENT | {"attention": {"kind": "luong", "input_feeding": True}},
    "recurrent-language": {"kind": "recurrent-decoder", "vocab_size": VOCAB, "d_model": 12, "n_layers": 3, "dropout": 0.2},
}


def drawn(seed: int, longest: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (N,), generator=draw).tolist()
    return [torch.randint(4, VOCAB, (n,), generator=draw).tolist() for n in lengths]


def batch(kind: str, rows: list[int], longest: int) -> Batch:
    """Build a batch of some samples, padded to the longest of them."""
    sources, targets = ([side[i] for i in rows] for side in (drawn(1, longest), drawn(2, longest)))
    text, samples, labels = PaddedSequences.pad(sources), tuple(rows), torch.tensor([i % 2 for i in rows])
    match kind:
        case "seq2seq" | "recurrent-seq2seq":
            return translation_batch(sources, targets, rows)
        case "decoder" | "recurrent-decoder":
            return LanguageBatch(text, (text.tokens * 5 + text.positions) % VOCAB, samples)
        case "encoder" | "token-tagger":
            return MaskedBatch(text, text.tokens % 2 if kind == "token-tagger" else text.tokens, text.tokens % 3 > 0, samples)
        case "text-classifier":
            return LabeledTextBatch(text, labels, samples)
        case "text-embedder":
            return ContrastiveBatch(text, PaddedSequences.pad(targets), samples)
        case _:
            pixels = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(3)).double()
            return ImageBatch(pixels[rows], labels, samples)


def built(fields: dict[str, Any]) -> Network:
    torch.manual_seed(1)
    return build_model(TypeAdapter(AnyModel).validate_python(fields)).double().train()


def updated(model: Network, kind: str, n_micro_batches: int, longest: int = 9, n_steps: int = 2) -> list[Tensor]:
    """Return the weights after steps whose batch is split into micro-batches."""
    parts = [batch(kind, list(range(i, N, n_micro_batches)), longest) for i in range(n_micro_batches)]
    train_step = TrainStep(model, build_optimizer(model, SGD), TRAINING, torch.float32, CrossEntropy(0.1))
    for _ in range(n_steps):
        assert not train_step.step(parts, 0.5).skipped
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-12) -> bool:
    return all(torch.allclose(x, y, rtol=0, atol=tolerance) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_does_not_depend_on_its_micro_batches(name: str) -> None:
    fields = MODELS[name]
    whole = updated(built(fields), fields["kind"], 1)
    assert same(whole, updated(built(fields), fields["kind"], 3))
    without = {rate: 0.0 for rate in fields if rate.endswith("dropout")}
    assert not same(whole, updated(built(fields | without), fields["kind"], 1), 1e-4)


@pytest.mark.parametrize("fields", tiers([DECODER, DECODER | {"attention": SPARSE}], long=[ENCODER | {"kind": "encoder"}]), ids=str)
def test_nor_do_long_rows(fields: dict[str, Any]) -> None:
    """Attention by tiles; the strided part sorts the tokens of each row."""
    fields = fields | {"n_layers": 1}
    whole, split = (updated(built(fields), fields["kind"], n, longest=1150, n_steps=1) for n in (1, 3))
    assert same(whole, split)


def test_nor_does_an_adapter() -> None:
    lora = LoraConfig(rank=2, dropout=0.3, target_modules=["attn.q", "ff.up"])

    def adapted() -> Network:
        model = built(SEQ2SEQ | dict.fromkeys(RATES, 0.0))
        apply_lora(model, lora)
        for parameter in model.double().parameters():
            if parameter.requires_grad:
                torch.nn.init.constant_(parameter, 0.1)
        return model.train()

    assert same(updated(adapted(), "seq2seq", 1), updated(adapted(), "seq2seq", 3))


def test_both_copies_of_r_drop_have_masks_of_their_own() -> None:
    training = TranslationTrainingConfig(optimizer=SGD, max_grad_norm=None, r_drop=2.0)
    ends = []
    for n in (1, 3):
        model = built(SEQ2SEQ)
        parts = [batch("seq2seq", list(range(i, N, n)), 9) for i in range(n)]
        train_step = TrainStep(model, build_optimizer(model, SGD), training, torch.float32, choose_text_loss(training))
        result = train_step.step(parts, 0.5)
        ends.append([p.detach().clone() for p in model.parameters()])
        assert result.loss > result.nll + 1e-3 * training.r_drop, "the divergence of the copies is not 0"
    assert same(*ends)


def test_a_repeated_pass_has_the_same_masks_and_both_texts_of_a_pair_have_others() -> None:
    model = built(ENCODER | {"kind": "text-embedder"})
    texts = PaddedSequences.pad(drawn(1, 9))
    pairs = ContrastiveBatch(texts, texts, tuple(range(N)))
    updated_sites = TrainStep(model, build_optimizer(model, SGD), TRAINING, torch.float32, CrossEntropy(0.0))
    with keyed_dropout(1, 1):
        first, again = (forward_pass(model, pairs) for _ in range(2))
    assert updated_sites.n_steps == 0 and torch.equal(first.hidden, again.hidden) and torch.equal(first.weight, again.weight)
    assert not torch.allclose(first.hidden, first.weight * model.config.temperature)


@pytest.mark.parametrize("name", MODELS)
def test_every_mask_of_a_model_is_keyed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields, n_drawn = MODELS[name], 0

    def counted(masks: KeyedMasks, x: Tensor, p: float, draw: Any = KeyedMasks.draw) -> Tensor:
        nonlocal n_drawn
        n_drawn += 1
        return draw(masks, x, p)

    monkeypatch.setattr(KeyedMasks, "draw", counted)
    model, state = built(fields), torch.get_rng_state()
    updated(model, fields["kind"], 1, n_steps=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert n_drawn >= sum(module.p > 0 for module in model.modules() if isinstance(module, Dropout))


@pytest.mark.parametrize("source", tiers(["keyed"], long=["generator"]))
def test_a_killed_run_goes_on_to_the_same_end(tmp_path: Path, source: str) -> None:
    die_and_end_the_same(partial(sit, dropout_rng=source), tmp_path)


def losses(out: Path, **training: Any) -> list[float]:
    seen: list[float] = []
    sit(out, lambda event: seen.append(event.loss) if isinstance(event, StepFinished) else None, max_steps=4, precision="fp32", **training)
    return seen


def test_accumulated_steps_are_those_of_one_batch_only_with_keys(tmp_path: Path) -> None:
    one, three = (losses(tmp_path / str(n), grad_accum_steps=n) for n in (1, 3))
    assert one == pytest.approx(three, rel=1e-5)
    assert losses(tmp_path / "drawn", grad_accum_steps=3, dropout_rng="generator") != pytest.approx(one, rel=1e-5)


def test_a_run_from_before_keys_keeps_its_generator_and_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    before = tmp_path / "before"
    losses(before, dropout_rng="generator")
    run_id = json.loads((before / "config.json").read_text())["run"]
    text = (before / RECIPE).read_text()
    (before / RECIPE).write_text(text.replace('dropout_rng = "generator"\n', ""))
    assert text != (before / RECIPE).read_text()
    assert load_recipe(before / RECIPE)[0].training.dropout_rng == "generator"
    with RunFolder.create(before, resume=True) as folder:
        setup = build_training_setup(recipe(max_steps=6, precision="fp32"), Path(), folder)
    assert setup.recipe.training.dropout_rng == "generator" and folder.run_id == run_id
    with pytest.raises(ConfigError, match=r"was started with training\.dropout_rng = generator, found keyed"):
        losses(before, dropout_rng="keyed")
    assert load_recipe(shutil.copytree(GOLDEN, tmp_path / "golden") / RECIPE)[0].training.dropout_rng == "generator"
    assert recipe().training.dropout_rng == "keyed"
