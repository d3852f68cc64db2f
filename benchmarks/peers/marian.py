"""The transformers library's Marian model: the Transformer of Vaswani et al. (2017), in a format that CTranslate2 can import."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from benchmarks.peers.training import build_training_steps
from benchmarks.shapes import Shape, Task, random_tokens

EOS = 0


def fresh_model(shape: Shape) -> MarianMTModel:
    """Build a randomly initialized model whose last token is both padding and the decoder's start token."""
    c = shape.config
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=shape.vocab,
        decoder_vocab_size=shape.vocab,
        d_model=c.d_model,
        encoder_layers=c.n_encoder_layers,
        decoder_layers=c.n_decoder_layers,
        encoder_attention_heads=c.n_heads,
        decoder_attention_heads=c.n_heads,
        encoder_ffn_dim=c.d_ff,
        decoder_ffn_dim=c.d_ff,
        max_position_embeddings=c.max_seq_len,
        dropout=c.dropout,
        attention_dropout=c.attention_dropout,
        activation_dropout=c.feed_forward_dropout,
        pad_token_id=shape.vocab - 1,
        eos_token_id=EOS,
        decoder_start_token_id=shape.vocab - 1,
        forced_eos_token_id=None,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        activation_function="relu",
    )
    return MarianMTModel(config)


def training_steps(shape: Shape, compiled: bool) -> dict[str, Callable[[], float]]:
    """Return a training step per mode."""
    model = fresh_model(shape).train()
    source, labels = random_tokens(shape.pairs, shape.source, shape.vocab, 1), random_tokens(shape.pairs, shape.target, shape.vocab, 2)
    target = torch.cat([torch.full((shape.pairs, 1), shape.vocab - 1), labels[:, :-1]], 1)

    def logits() -> Tensor:
        logits: Tensor = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        return logits

    return build_training_steps(model, logits, labels, compiled)


def translators(tasks: list[Task]) -> dict[tuple[str, str], Callable[[], list[list[int]]]]:
    """Return ``generate`` workloads by (task, mode) in float32 and bfloat16, which return the new tokens of each row."""
    model = fresh_model(tasks[0].shape).eval()
    models = {"bf16": copy.deepcopy(model).to(torch.bfloat16), "fp32": model}
    return {(task.name, mode): partial(_generate, model, task) for task in tasks for mode, model in models.items()}


@torch.inference_mode()
def _generate(model: MarianMTModel, task: Task) -> list[list[int]]:
    length = task.shape.target
    sequences: Tensor = model.generate(
        input_ids=random_tokens(task.rows, task.shape.source, task.shape.vocab, 3),
        num_beams=task.beams,
        do_sample=False,
        min_new_tokens=length,
        max_new_tokens=length,
        pad_token_id=task.shape.vocab - 1,
    )
    new_tokens: list[list[int]] = sequences[:, 1:].tolist()
    return new_tokens
