"""Running statistics against those of all values at once; a probe that follows a training run."""

from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.models.combinations import SET_TEXTS, SOURCE, TARGET, batch_for, described
from tests.models.test_combinations import built
from transom.inspection.probe import TraceProbe
from transom.inspection.trace import Trace, trace
from transom.inspection.trace_statistics import trace_statistics


def test_statistics_are_those_of_all_values() -> None:
    """Over two batches of different lengths, tokens only, per feature and per head."""
    config = described(SET_TEXTS[6])
    model, batches = built(config), [batch_for(config), batch_for(config, SOURCE, TARGET)]
    names = ["decoder.blocks.0.resid_post", "decoder.blocks.0.cross.z", "logits"]
    found = trace_statistics(model, batches, names, keep=["d_model", "n_heads"])
    values: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        _, traced = trace(model, batch, names)
        tokens = batch.decoder_input.segments > 0
        values[names[0]].append(traced[names[0]][tokens])
        values[names[1]].append(traced[names[1]].movedim(2, 1)[tokens].movedim(1, 2).flatten(0, 1))
        values[names[2]].append(traced[names[2]][tokens].flatten())
    for name in names:
        x, each = torch.cat(values[name]), found[name]
        assert each.n == len(x)
        for got, expected in ((each.mean, x.mean(0)), (each.std, x.std(0, correction=0)), (each.min, x.amin(0)), (each.max, x.amax(0))):
            assert torch.allclose(got, expected, rtol=1e-12, atol=1e-13)
    assert [found[name].axes for name in names] == [("d_model",), ("n_heads",), ()]


def test_values_that_are_not_finite_are_left_out() -> None:
    config = described(SET_TEXTS[6])
    model, batch = built(config), batch_for(config)
    (each,) = trace_statistics(model, [batch], ["decoder.blocks.0.attn.masked_scores"]).values()
    _, traced = trace(model, batch, ["decoder.blocks.0.attn.masked_scores"])
    x = traced["masked_scores"].movedim(2, 1)[batch.decoder_input.segments > 0]
    assert each.n == int(x.isfinite().sum()) < x.numel() and float(each.mean) == pytest.approx(float(x[x.isfinite()].mean()))


SIZES = ["model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"]


@pytest.mark.long
def test_a_probe_follows_the_weights_and_changes_none(tmp_path: Path) -> None:
    seen = dict[int, torch.Tensor]()

    def use(step: int, found: Trace) -> None:
        assert found.certify()[0].ok
        seen[step] = found["decoder.blocks.0.attn.weights"].clone()

    fields = ["model.dropout=0.3", "training.max_steps=5", "training.batch_tokens=64", *SIZES]
    probe = TraceProbe(["decoder.blocks.0.attn.weights"], use, every=2)
    transom.train("reverse", tmp_path / "a", fields, callbacks=[probe])
    transom.train("reverse", tmp_path / "b", fields)
    assert probe.steps == [1, 2, 4] == list(seen) and not torch.equal(seen[1], seen[4])
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
