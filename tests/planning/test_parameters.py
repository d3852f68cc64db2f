"""Counts from the configuration are those of the model that is built from it, and the paper's."""

from time import process_time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig
from transom.config.packaged import packaged_presets
from transom.errors import ConfigError
from transom.models.build import build_model
from transom.planning.parameters import count_parameters

SIZES = st.integers(1, 5)
CONFIGS = st.fixed_dictionaries(
    {
        "d_model": SIZES,
        "n_heads": SIZES,
        "d_head": SIZES,
        "d_value": SIZES,
        "d_ff": SIZES,
        "n_encoder_layers": st.integers(1, 3),
        "n_decoder_layers": st.integers(1, 3),
        "target_vocab_size": SIZES,
        "norm_placement": st.sampled_from(["post", "pre"]),
        "attention": st.fixed_dictionaries({"qkv_bias": st.booleans(), "output_bias": st.booleans()}),
        "feed_forward": st.fixed_dictionaries({"bias": st.booleans()}),
        "tie_embeddings": st.sampled_from(["all", "decoder", "inputs", "none"]),
    }
)


@settings(max_examples=60)
@given(CONFIGS, SIZES)
def test_counts_are_those_of_the_model(sizes, source_vocab_size):
    source = sizes["target_vocab_size"] if sizes["tie_embeddings"] in ("all", "inputs") else source_vocab_size
    config = Seq2SeqConfig.model_validate(sizes | {"source_vocab_size": source, "max_seq_len": 4})
    model, counted = build_model(config), count_parameters(config)
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    for stack in ("encoder", "decoder"):
        parts = {part: count for part, count in counted.parts.items() if part.startswith(stack)}
        assert sum(parts.values()) == sum(parameter.numel() for parameter in model.get_submodule(stack).parameters())
    tables = {p.data_ptr(): p.numel() for name, p in model.named_parameters() if "embedding" in name}
    assert counted.embeddings == sum(tables.values())


def test_heads_without_an_output_map():
    config = Seq2SeqConfig(
        d_model=4, n_heads=2, d_ff=3, n_encoder_layers=1, n_decoder_layers=1, source_vocab_size=5, target_vocab_size=5, max_seq_len=4,
        attention={"kind": "multihead", "output_projection": False},
    )  # fmt: skip
    model = build_model(config)
    assert count_parameters(config).total == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("preset", "printed", "counted", "symbols"),
    [("transformer-base", 65e6, 63_082_496, (39_800, 41_700)), ("transformer-big", 213e6, 214_245_376, (35_300, 36_300))],
)
def test_presets_have_the_papers_size(preset, printed, counted, symbols):
    """Vaswani et al. 2017, table 3, prints 65 and 213 million; section 5.1 says "about 37000" shared symbols.

    With 37,000 we are 2.9% below for the base model and 0.6% above for the big one. The paper does not say what it counts. The vocabulary
    alone does not explain the difference: its printed figures, rounded to a million, would need about 40,700 symbols for the one
    and 35,800 for the other.
    """
    tables = packaged_presets()[preset]
    assert "Vaswani et al. 2017" in tables["source"]
    config = Seq2SeqConfig.model_validate(tables["model"] | {"source_vocab_size": 37_000, "target_vocab_size": 37_000})
    total = count_parameters(config).total
    assert total == counted
    assert abs(total - printed) / printed < 0.04
    rest = total - count_parameters(config).embeddings
    needed = [(printed + half - rest) / config.d_model for half in (-0.5e6, 0.5e6)]
    assert [round(symbol, -2) for symbol in needed] == pytest.approx(symbols, abs=100)


@pytest.mark.parametrize(
    ("preset", "family", "symbols", "counted"),
    [
        ("gpt2", DecoderConfig, 50_257, 124_439_808),
        ("llama-7b", DecoderConfig, 32_000, 6_738_415_616),
        ("bert-base", MaskedLMConfig, 30_521, 109_483_776),  # and the mask, a row of its own
    ],
)
def test_published_models_have_their_size(preset, family, symbols, counted):
    assert count_parameters(family.model_validate(packaged_presets()[preset]["model"] | {"vocab_size": symbols})).total == counted


def test_a_published_count_by_hand():
    """4 d^2 + 4 d an attention layer, 2 d d_ff + d_ff + d a feed-forward layer, 2 d a norm."""
    config = Seq2SeqConfig(source_vocab_size=37_000, target_vocab_size=37_000)
    attention, feed_forward, norm = 4 * 512**2 + 4 * 512, 2 * 512 * 2048 + 2048 + 512, 2 * 512
    encoder, decoder = 6 * (attention + feed_forward + 2 * norm), 6 * (2 * attention + feed_forward + 3 * norm)
    assert count_parameters(config).total == 37_000 * 512 + encoder + decoder


def test_mixtral_has_its_size():
    """Jiang et al. 2024, section 1: 47 thousand million parameters, 13 of them active a token; the released weights are 46,702,792,704."""
    sizes = {"d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "vocab_size": 32_000, "tie_embeddings": False}
    plain = {"attention": {"qkv_bias": False, "output_bias": False}, "norm": "rmsnorm"}
    counted = count_parameters(DecoderConfig.model_validate(sizes | plain | {"feed_forward": {"kind": "moe", "n_experts": 8, "top_k": 2}}))
    assert counted.total == 46_702_792_704
    assert counted.active == counted.total - 32 * 6 * 3 * 4096 * 14336
    assert round(counted.active / 1e9) == 13


def test_a_token_that_uses_all_has_all_active():
    config = Seq2SeqConfig(source_vocab_size=9, target_vocab_size=9)
    assert count_parameters(config).active == count_parameters(config).total


class OnMeta(TorchFunctionMode):
    """Refuses to make a tensor that takes memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        assert not isinstance(made, Tensor) or made.is_meta, f"{func.__name__} took memory"
        return made


BIG = {"d_model": 2**14, "n_heads": 128, "d_ff": 2**16, "source_vocab_size": 10**6, "target_vocab_size": 10**6}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_seq_len": 16},
        {"max_seq_len": 2**14, "position": "rotary"},
        {"max_seq_len": 2**14, "position": "sinusoidal"},
        {"max_seq_len": 2**14, "position": "learned"},
        {"n_encoder_layers": 1000, "n_decoder_layers": 1000},
        {"n_encoder_layers": 1000, "n_decoder_layers": 999, "feed_forward": {"kind": "moe", "n_experts": 4096}},
        {"n_encoder_layers": 1000, "n_decoder_layers": 999, "depth": {"kind": "mod", "every": 300}},
        {"n_heads": 2**30, "d_head": 1, "position": "alibi"},
    ],
    ids=str,
)
def test_counting_takes_no_memory_no_draws_and_no_time(fields):
    config, state, start = Seq2SeqConfig.model_validate(BIG | fields), torch.get_rng_state(), process_time()
    with OnMeta():
        counted = count_parameters(config)
    assert counted.total > 10**10 and counted.embeddings >= 10**6 * 2**14
    assert process_time() - start < 2
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "fields", [{"d_model": 2**40, "position": "none"}, {"d_ff": 2**62}, {"n_heads": 10**12, "d_head": 10**12}], ids=str
)
def test_a_matrix_that_cannot_be_counted_is_refused(fields):
    with pytest.raises(ConfigError, match=r"model: expected matrices of fewer than 2\^61 elements each"):
        count_parameters(Seq2SeqConfig.model_validate(BIG | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n_layers": 7, "attention": {"value_residual": "learned"}},
        {"n_layers": 11, "depth": {"kind": "mod", "every": 3}},
        {"n_layers": 4, "feed_forward": {"kind": "moe", "n_experts": 9, "top_k": 2, "n_shared_experts": 2}, "norm_placement": "parallel"},
    ],
    ids=str,
)
def test_many_blocks_and_experts_are_counted_from_a_few(fields):
    config = DecoderConfig.model_validate({"d_model": 8, "n_heads": 2, "d_ff": 5, "vocab_size": 9} | fields)
    model, counted = build_model(config), count_parameters(config)
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    experts = [p.numel() for name, p in model.named_parameters() if ".experts." in name]
    assert counted.inactive == sum(experts) * 7 // 9
    blocks = model.decoder.blocks
    assert counted.parts["decoder.ff"] == sum(p.numel() for block in blocks for p in block.ff.parameters())
    assert counted.parts["decoder.attn"] == sum(p.numel() for block in blocks for p in block.attn.parameters())
