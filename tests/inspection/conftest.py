"""A made-up run, the same each time, with hostile text in it."""

import math
import random
from dataclasses import replace

import pytest
import torch

from transom.config.data import PairFilesConfig
from transom.config.model import Seq2SeqConfig
from transom.decoding.predictors.results import Alignment
from transom.inspection.pages.run_summary import RunSummary, TestScore
from transom.tasks.translation.schema import TranslationDataConfig, TranslationRecipe, TranslationTrainingConfig

HOSTILE = "</style><script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\" \x1b[31m\u202eevil\x00"

SAMPLES = [
    {"source": source, "reference": reference, "translation": translation}
    for source, reference, translation in (
        ("Two big dogs are playing in the snow.", "Zwei große Hunde spielen im Schnee.", "Zwei große Hunde spielen im Schnee."),
        ("A man sleeps on a bench.", "Ein Mann schläft auf einer Bank.", "Ein Mann schläft auf einer Parkbank."),
        (HOSTILE, HOSTILE, "Ein Mann " + HOSTILE),
        ("Silence.", "Stille.", ""),
    )
]


def made_up_metrics(n_steps: int = 6000) -> list[dict[str, object]]:
    """Write records as training writes them: falling losses with noise, validations, two skipped steps."""
    draw = random.Random(1)
    records: list[dict[str, object]] = []
    for step in range(10, n_steps + 1, 10):
        loss = 1.75 + 7.2 * math.exp(-step / 350) + 1.4 * math.exp(-step / 2200) + draw.gauss(0, 0.05)
        if step in (1230, 1240):
            records.append({"step": step, "kind": "skipped", "samples": ["line 17", "line 25011"]})
        record: dict[str, object] = {
            "step": step,
            "kind": "train",
            "learning_rate": 3e-3 * min(step**-0.5, step * 600**-1.5) * 600**0.5,
            "loss": loss,
            "nll": loss - 0.6,
            "grad_norm": None if step == 1240 else 0.6 + 4 * math.exp(-step / 200) + abs(draw.gauss(0, 0.15)),
            "target_tokens_per_second": 3900 + draw.gauss(0, 120) - (900 if step % 500 == 0 else 0),
            "matmul_utilization": 0.41 + draw.gauss(0, 0.01),
            "skipped": 1.0 if step in (1230, 1240) else 0.0,
        }
        records.append(record)
        if step % 500 == 0:
            valid = 1.62 + 4 * math.exp(-step / 900) + max(0, step - 5000) * 2e-5
            figures = {
                "loss": valid,
                "perplexity": math.exp(valid),
                "bleu": 39.2 * (1 - math.exp(-step / 1300)),
                "chrf": 61 * (1 - math.exp(-step / 700)),
            }
            records.append(
                {"step": step, "kind": "validation", "best": step <= 5000, "seconds": step * 0.42, **figures, "samples": SAMPLES}
            )
    return records


@pytest.fixture
def alignment() -> Alignment:
    """Align an English sentence with its German translation."""
    source, target = (
        ["Two", "big", "dogs", "are", "playing", "in", "the", "snow", ".", "[EOS]"],
        ["Zwei", "große", "Hunde", "spielen", "im", "Schnee", ".", "[EOS]"],
    )
    weights = torch.full((len(target), len(source)), 0.02)
    for row, columns in enumerate([[0], [1], [2], [3, 4], [5, 6], [7], [8], [9]]):
        weights[row, columns] = (1 - 0.02 * (len(source) - len(columns))) / len(columns)
    return Alignment(tuple(source), tuple(target), weights, "decoder layer 3 of 3, mean of 4 heads")


@pytest.fixture
def run(alignment: Alignment) -> RunSummary:
    """Describe a made-up run."""
    recipe = TranslationRecipe(
        data=TranslationDataConfig(
            root="../data",
            train=PairFilesConfig(source="train.en", target="train.de"),
            valid=PairFilesConfig(source="val.en", target="val.de"),
        ),
        model=Seq2SeqConfig(d_model=192, n_encoder_layers=3, n_decoder_layers=3, n_heads=4, d_ff=512),
        training=TranslationTrainingConfig(max_steps=6000),
    )
    return RunSummary(
        name="multi30k-en-de",
        recipe=recipe,
        metrics=made_up_metrics(),
        n_parameters=2_912_448,
        n_active=2_912_448,
        seconds=2534.0,
        data={
            "problems": ["3 pairs of the validation set are also in the training set: lines 12, 407 and 803 of val.en"],
            "train": {"pairs": 29000, "source_tokens": 377534, "target_tokens": 360706},
            "valid": {"pairs": 1014, "source_tokens": 13308, "target_tokens": 12828},
        },
        alignments=(alignment, replace(alignment, source=(HOSTILE, *alignment.source[1:]), target=(HOSTILE, *alignment.target[1:]))),
        test_scores=(TestScore("BLEU", 39.61, "test_2016_flickr", "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.5.1"),),
        machine_notes=("2 cores, 1 thread each", "bf16: this CPU multiplies bf16 in hardware (amx_bf16)"),
    )
