"""Workloads that are the same for every system: model shapes, training batches and sentences to translate."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from transom.config.model import Seq2SeqConfig
from transom.config.training import AdamConfig, TrainingConfig
from transom.planning.flops import count_flops
from transom.planning.parameters import count_parameters

FIRST_WORD = 3
"""The first token that is a word for every system; lower token ids and the last one are special tokens of some system."""

TRAINING = TrainingConfig(label_smoothing=0.1, max_grad_norm=1.0, optimizer=AdamConfig())
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Shape:
    """A model and its training batch: ``pairs`` rows of ``source`` and ``target`` tokens, without padding."""

    name: str
    config: Seq2SeqConfig
    pairs: int
    source: int = 25
    target: int = 32

    @property
    def vocab(self) -> int:
        """Size of the shared vocabulary."""
        assert self.config.target_vocab_size
        return self.config.target_vocab_size

    @property
    def training_tokens(self) -> int:
        """Target tokens per training step."""
        return self.pairs * self.target

    @property
    def training_flops(self) -> int:
        """FLOPs in the matrix products of a training step."""
        return count_flops(self.config, self.pairs, self.source, self.target).training

    @property
    def training_bytes(self) -> int:
        """Minimum memory traffic of a training step in float32, in bytes.

        Forward and backward each read the weights, and backward writes the gradients. Adam reads weights, gradients and both moments, and
        writes weights and moments.
        """
        return count_parameters(self.config).total * 4 * (2 + 1 + 4 + 3)


@dataclass(frozen=True)
class Task:
    """A batch to translate: ``rows`` sentences of ``shape.source`` tokens, each decoded in ``shape.target`` steps to that many tokens."""

    name: str
    shape: Shape
    rows: int
    beams: int
    rounds: int = field(default=7)

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return self.rows * self.shape.target

    @property
    def flops(self) -> int:
        """FLOPs in matrix products with weights: the encoder once per sentence, the decoder once per beam and step."""
        flops = count_flops(self.shape.config, self.rows, self.shape.source, 1).parts
        encoder = flops["encoder.attn"] + flops["encoder.ff"]
        return encoder + 2 * _weights_per_step(self.shape.config) * self.rows * self.beams * self.shape.target

    def bytes_read(self, bytes_per_weight: float) -> float:
        """Return the bytes of weights that the decoder's steps read."""
        return _weights_per_step(self.shape.config) * bytes_per_weight * self.shape.target


def _weights_per_step(config: Seq2SeqConfig) -> int:
    """Count the weights read by one decoding step; W_K and W_V of cross-attention are excluded because they are read once per source."""
    parts = count_parameters(config).parts
    assert config.target_vocab_size
    return parts["decoder.attn"] + parts["decoder.cross"] // 2 + parts["decoder.ff"] + config.d_model * config.target_vocab_size


def random_tokens(rows: int, length: int, vocab: int, seed: int) -> Tensor:
    """Sample word tokens of shape (rows, length), the same for every system."""
    return torch.randint(FIRST_WORD, vocab - 1, (rows, length), generator=torch.Generator().manual_seed(seed))


def _config(vocab: int, **fields: int) -> Seq2SeqConfig:
    return Seq2SeqConfig(source_vocab_size=vocab, target_vocab_size=vocab, dropout=0.1, **fields)  # type: ignore[arg-type]


BASE = Shape("transformer-base", _config(16000), pairs=64)
SMALL = Shape("multi30k", _config(10000, d_model=256, n_heads=4, d_ff=1024, n_encoder_layers=3, n_decoder_layers=3), 180, 14, 14)
TINY = Shape("tiny", _config(120, d_model=32, n_heads=2, d_ff=64, n_encoder_layers=2, n_decoder_layers=2), 4, 5, 6)


def tasks(shape: Shape, rows: int = 32) -> list[Task]:
    """List the translation workloads of a shape."""
    return [
        Task(f"batch {rows} greedy", shape, rows, 1),
        Task(f"batch {rows} beam 4", shape, rows, 4, rounds=5),
        Task("batch 1 greedy", shape, 1, 1, rounds=25),
    ]
