"""Scores by step are those of the lenses on each checkpoint, loaded and measured one by one."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.inspection.lenses.test_rollout import IMAGES, model_of
from tests.models.combinations import ENCODERS, FAMILIES
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.errors import CheckpointError, ConfigError
from transom.inspection.lenses.head_formation import ENTROPY, head_formation
from transom.inspection.plots.formation import best_heads, head_name
from transom.tasks.load_checkpoint import kept_steps, load_run_or_checkpoint, load_steps

TINY: dict[str, Any] = {
    "model.d_model": 16,
    "model.d_ff": 16,
    "model.n_heads": 2,
    "model.n_layers": 2,
    "model.max_seq_len": 32,
    "training.max_steps": 6,
    "training.checkpoint_every": 2,
    "training.validate_every": 3,
    "training.batch_tokens": 256,
    "training.precision": "fp32",
    "tokenizer.vocab_size": 280,
}


def train(folder: Path, **fields: Any) -> Path:
    (folder / "text.txt").write_text("the cat sees the dog. the dog sees the cat.\n" * 60)
    transom.train("text-bpe", folder / "run", TINY | fields, text=folder / "text.txt", progress=False)
    return folder / "run"


def test_every_step_of_a_run_has_the_numbers_of_its_checkpoint(tmp_path: Path) -> None:
    run = train(tmp_path, **{"training.keep_checkpoints": 10})
    assert kept_steps(run) == [2, 4, 6]
    tokens = torch.tensor([[2, 30, 41, 30, 41, 7, 30]])
    picture = transom.plot("formation", load_steps(run, "fp32"), tokens)
    value = {(step, layer, head, name): x for step, layer, head, name, x in picture.rows}
    assert len(value) == 3 * 4 * 7
    for step in (2, 4, 6):
        model = load_run_or_checkpoint(run if step == 6 else run / "checkpoints" / f"step-{step}", "fp32").model
        weights = transom.trace(model, tokens, ["attn.weights"])[1]
        for address, maps in weights.items():
            for head, rows in enumerate(maps[0].double().tolist()):
                before = sum(rows[i][i - 1] for i in range(1, 7)) / 6
                entropy = sum(-sum(p * math.log(p) for p in rows[i][: i + 1]) / math.log(i + 1) for i in range(1, 7)) / 6
                at = (step, address.removesuffix(".weights"), head)
                assert value[*at, "previous-token"] == pytest.approx(before, rel=1e-6)
                assert value[*at, ENTROPY] == pytest.approx(entropy, rel=1e-6)
    for step in (2, 4):
        shutil.rmtree(run / "checkpoints" / f"step-{step}")
    with pytest.raises(CheckpointError, match=r"expected a run with two checkpoints or more, found step-6; .*training\.keep_checkpoints"):
        kept_steps(run)
    at_end = {(layer, head): float(x) for (step, layer, head, name), x in value.items() if step == 6 and name == "induction"}
    best = max(at_end, key=lambda head: at_end[head])
    assert f"Highest induction at the end: {head_name(*best)}, " in picture.alt and f"{at_end[best]:.2f} now" in picture.alt  # type: ignore[arg-type]


@pytest.mark.parametrize("family", every(3, [FAMILIES[0], ENCODERS[0], {"kind": "vision-transformer"}]), ids=lambda each: each["kind"])
def test_every_family_has_scores_that_it_has_a_meaning_for(family: dict[str, Any]) -> None:
    if family["kind"] == "vision-transformer":
        model = built(config := VisionTransformerConfig.model_validate(IMAGES))
        batch = model.as_batch(torch.rand(2, config.channels, 8, 8, dtype=torch.float64))
    else:
        model, batch = model_of(family)
    found = head_formation([(0, model), (5, model)], [batch])
    without = {"previous-token", "induction", "duplicate-token", "delimiter"} if family["kind"] == "vision-transformer" else set()
    assert {"positional", ENTROPY} <= set(found.scores) and not without & set(found.scores) and "copying" not in found.scores
    assert all(torch.equal(x[0].nan_to_num(), x[1].nan_to_num()) for x in found.scores.values()) and found.steps == [0, 5]
    if family["kind"] == "seq2seq":  # a token before exists in self-attention only
        is_cross = torch.tensor([address.endswith(".cross") for address, _ in found.heads])
        assert torch.equal(found.scores["previous-token"][0].isnan(), is_cross)
        assert not any(is_cross[h] for h in best_heads("previous-token", found.scores["previous-token"]))


def test_too_few_steps_are_refused() -> None:
    model, batch = model_of(FAMILIES[3])
    with pytest.raises(ConfigError, match="expected models of two steps or more, found 1"):
        transom.plot("formation", [(1, model)], batch)
    with pytest.raises(ConfigError, match="model: expected pairs of a step and a model for formation, found DecoderOnlyTransformer"):
        transom.plot("formation", model, batch)
