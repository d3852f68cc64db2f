"""Plans agree with closed formulas for GPT-2 and Llama, with real caches and optimizers, and with the articles' complexity table."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.config.recipe import parse_model_config
from transom.config.recurrent import RecurrentDecoderConfig
from transom.config.training import EncoderTrainingConfig, TextTrainingConfig
from transom.config.vision import ConvolutionalNetworkConfig
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.inputs import TokenSequences
from transom.models.seq2seq import Seq2SeqTransformer
from transom.planning.cache_size import cache_size
from transom.planning.flops import count_flops, count_pair_flops
from transom.planning.plan import compute_budget, flops_per_token
from transom.planning.training_bytes import StepMemory, count_optimizer_state, count_training_bytes
from transom.training.optimizer import build_optimizer, state_specs

GPT2 = parse_model_config({"preset": "gpt2", "vocab_size": 50_257})
LLAMA = parse_model_config({"preset": "llama-7b", "vocab_size": 32_000})


def test_gpt2_by_hand() -> None:
    """12 blocks of 12 d^2 weights and the tied output; attention 4 n d per layer; a cache of 2 d numbers per layer."""
    d, n, flops = 768, 1024, flops_per_token(GPT2, 0, 1024)
    assert flops.weights == 2 * (12 * 12 * d**2 + 50_257 * d)
    assert flops.pairs == 12 * 4 * n * d
    assert flops.training == 3 * (flops.weights + flops.pairs)
    assert flops.six_n == 6 * 124_439_808
    assert flops.above_six_n == flops.training / flops.six_n - 1
    cache = cache_size(GPT2, 2)
    assert cache is not None and cache.per_token == 12 * 2 * d * 2 == cache.multi_head and cache.multi_query == 12 * 2 * 64 * 2
    assert cache.of_row(n) == n * 36_864


def test_llama_by_hand() -> None:
    d, d_ff, n, flops = 4096, 11_008, 2048, flops_per_token(LLAMA, 0, 2048)
    assert flops.weights == 2 * (32 * (4 * d**2 + 3 * d * d_ff) + 32_000 * d)
    assert flops.pairs == 32 * 4 * n * d
    assert "32 layers x 2 x 32 heads x (128 + 128) x 2,048 keys" in flops.formula[1]
    grouped = cache_size(LLAMA.model_copy(update={"n_kv_heads": 8}), 2)
    assert grouped is not None and 4 * grouped.per_token == grouped.multi_head == 32 * 2 * d * 2


def test_bytes_of_llama_by_hand() -> None:
    """ZeRO (Rajbhandari et al. 2020): 8 bytes per weight of Adam's state are divided in stage 1, all 16 in stage 3."""
    n, training = 6_738_415_616, EncoderTrainingConfig()
    plain, stage1, stage3 = (count_training_bytes(LLAMA, training, 1000, 64, kind) for kind in ("none", "optimizer", "full"))
    assert (plain.weights, plain.gradients, plain.optimizer, plain.average) == (4 * n, 4 * n, 8 * n, 0)
    assert stage1.optimizer == 8 * n // 64 and stage1.weights == 4 * n
    assert stage3.total == 20 * n // 64 + 1000  # with the copy for validation


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "muon"])
def test_optimizer_state_is_that_of_the_optimizer(kind: str) -> None:
    config = DecoderConfig(d_model=16, n_heads=2, n_layers=2, d_ff=24, vocab_size=50, max_seq_len=16)
    training = TextTrainingConfig.model_validate({"optimizer": {"kind": kind}})
    optimizer = build_optimizer(model := build_model(config), training.optimizer)
    specs = [spec for p in model.parameters() for name, spec in state_specs(optimizer, p).items() if name != "step"]
    assert count_optimizer_state(config, training) == sum(torch.Size(spec.shape).numel() for spec in specs)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from(["none", "linear"]),
    st.booleans(),
)
def test_a_cache_has_the_bytes_of_the_real_one(kv: int, d_head: int, d_value: int, layers: int, length: int, kind: str, mod: bool) -> None:
    depth = {"kind": "mod", "every": 2} if mod and kind == "none" else {"kind": "full"}
    sizes: dict[str, Any] = {
        "d_model": 8,
        "n_heads": 4,
        "n_kv_heads": kv,
        "d_head": d_head,
        "d_value": d_value,
        "d_ff": 4,
        "max_seq_len": 32,
    }
    fields = sizes | {"n_layers": layers, "vocab_size": 9, "position": "none", "depth": depth}
    config = DecoderConfig.model_validate(fields | {"attention": {"approximation": {"kind": kind}}})
    model, expected = build_model(config), cache_size(config, 4)
    assert isinstance(model, DecoderOnlyTransformer) and expected is not None
    cache = model.start(TokenSequences.from_tokens(torch.ones(3, 1, dtype=torch.long), None, None), 1, length)
    tensors = [x for block in cache.blocks for x in vars(block).values() if isinstance(x, torch.Tensor)]
    assert 3 * expected.of_row(length) == sum(x.numel() * x.element_size() for x in tensors)


def test_a_translator_also_caches_its_source() -> None:
    config = Seq2SeqConfig(d_model=8, n_heads=4, n_kv_heads=2, d_ff=4, source_vocab_size=9, target_vocab_size=9, max_seq_len=32)
    model, expected = build_model(config), cache_size(config, 4)
    assert isinstance(model, Seq2SeqTransformer) and expected is not None
    source = TokenSequences.from_tokens(torch.ones(3, 5, dtype=torch.long), None, None)
    cache = model.start(model.encode(source), 1, 7)
    tensors = [*(x for block in cache.blocks for x in vars(block).values() if isinstance(x, torch.Tensor))]
    tensors += [x for memory in cache.memories for x in memory]
    assert 3 * expected.of_row(7, 5) == sum(x.numel() * x.element_size() for x in tensors)


def test_the_compute_optimal_model_has_twenty_tokens_per_parameter() -> None:
    """Hoffmann et al. 2022, table 3: 70 billion parameters, 1.4 trillion tokens, 5.76e23 FLOPs (here 6 N D = 5.88e23)."""
    budget = compute_budget(70_000_000_000, 1_400_000_000_000, 6 * 70e9)
    assert budget.tokens_per_parameter == 20 and budget.optimal_tokens == 1_400_000_000_000
    assert budget.flops == budget.optimal_flops == pytest.approx(5.76e23, rel=0.03)
    assert budget.optimal_parameters == pytest.approx(70e9)


def growth(small: float, large: float) -> float:
    """Return how much larger the second number is."""
    return large / small


def test_complexity_per_layer_is_that_of_the_articles() -> None:
    """Vaswani et al. 2017, table 1: self-attention n^2 d, recurrent n d^2, convolutional k n d^2."""

    def attention(n: int, d: int) -> int:
        sizes = {"d_model": d, "n_heads": 2, "n_layers": 1, "d_ff": 1, "vocab_size": 1, "max_seq_len": 8192}
        return count_pair_flops(DecoderConfig.model_validate(sizes), 1, 0, n)

    def recurrent(n: int, d: int) -> int:
        sizes = {"d_model": d, "n_layers": 1, "vocab_size": 1, "cell": "rnn"}
        return count_flops(RecurrentDecoderConfig.model_validate(sizes), 1, 0, n).parts["decoder.layers"]

    def convolution(side: int, d: int) -> int:
        """Count one 3 x 3 convolution from d to d channels: what a second one per stage adds."""
        stems = [{"kind": "convolutional", "channels": (d,), "convs_per_stage": n} for n in (1, 2)]
        configs = [ConvolutionalNetworkConfig.model_validate({"image_size": side, "stem": stem, "classes": ("a", "b")}) for stem in stems]
        one, two = (count_flops(config, 1, 0, 1).parts["stem"] for config in configs)
        return two - one

    assert growth(attention(512, 64), attention(1024, 64)) == 4 and growth(attention(512, 64), attention(512, 128)) == 2
    assert growth(recurrent(512, 64), recurrent(1024, 64)) == 2 and growth(recurrent(512, 64), recurrent(512, 128)) == 4
    assert growth(convolution(16, 64), convolution(32, 64)) == 4  # four times the pixels
    assert convolution(16, 64) == 2 * 9 * 16**2 * 64**2  # 2 k n d^2
    assert attention(64, 512) < recurrent(64, 512) and attention(2048, 64) > recurrent(2048, 64)  # cheaper where n is smaller than d


def test_sharded_gradients_leave_the_peak_at_the_loss() -> None:
    step = StepMemory(saved=90, forward=100, peak=120, gradients=50, largest=10)
    assert (step.activations("none"), step.activations("optimizer"), step.activations("full")) == (70, 70, 100)
    assert StepMemory(saved=90, forward=60, peak=120, gradients=50, largest=10).activations("full") == 70
