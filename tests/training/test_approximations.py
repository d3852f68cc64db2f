"""A small decoder whose attention is approximated learns what only attention can do: to remember."""

import pytest
import torch

from transom.config.model import DecoderConfig
from transom.config.training import AdamConfig, TrainingConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.models.build import build_model
from transom.training.objectives.objective import CrossEntropy
from transom.training.optimizer import build_optimizer
from transom.training.train_step import TrainStep


def batch(generator: torch.Generator) -> LanguageBatch:
    """Make texts of which the first token is to be named at every place."""
    tokens = torch.randint(4, 12, (32, 12), generator=generator)
    return LanguageBatch(PaddedSequences.pad(tokens.tolist()), tokens[:, :1].expand(-1, 12).contiguous(), tuple(range(32)))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linear", "performer"])
def test_it_remembers_the_first_token(kind: str) -> None:
    torch.manual_seed(1)
    sizes = {"d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_seq_len": 16, "vocab_size": 12, "dropout": 0.0}
    model = build_model(DecoderConfig.model_validate(sizes | {"attention": {"approximation": kind}})).train()
    train_step = TrainStep(
        model, build_optimizer(model, AdamConfig()), TrainingConfig(label_smoothing=0.0), torch.float32, CrossEntropy(0.0)
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(150):
        train_step.step([batch(generator)], 5e-3)
    unseen = batch(generator)
    with torch.no_grad():
        right = (model.eval()(unseen).argmax(-1) == unseen.labels)[:, 1:]
    assert right.float().mean() > 0.95
