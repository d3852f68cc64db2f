"""Presets: each has its source, and its count is that of the built model, of a formula, and of the publication or says why not."""

import re
from collections.abc import Mapping
from time import process_time

import pytest
import torch

from tests.tiers import every
from transom.config.model import DecoderConfig, MaskedLMConfig, Seq2SeqConfig
from transom.config.packaged import packaged_preset
from transom.config.presets import Preset, load_preset, load_presets
from transom.config.recipe import parse_model_config
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.models.build import build_uninitialized
from transom.planning.presets import compare_preset, estimate_parameters

PRESETS = load_presets()
NEAR = 0.02

FORMER = {
    "bert-base": 109_482_240 + 2 * 768,  # token types were added later
    "decoder-block": 29_015_552,
    "gpt2": 124_439_808,
    "llama-7b": 6_738_415_616,
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
    "vit-base-16": 86_566_656,
    "vit-small-example": 464_064,
}
"""Counts of the presets that existed before there were facts on presets."""


def test_every_architecture_of_the_plan_is_there() -> None:
    table3 = [name for name in PRESETS if name.startswith("transformer-")]
    assert len(table3) == 20, "base, big and 18 rows of variations"
    gpt = ["gpt", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
    gpt3 = [f"gpt3-{size}" for size in ("small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b")]
    encoders = ["bert-base", "bert-large", "roberta-base", "roberta-large", "vit-base-16", "vit-large-16", "t5-base", "bart-base", "marian"]
    large = ["gopher-280b", "jurassic-1-178b", "lamda-137b", "megatron-turing-530b", "palm-540b", "chinchilla-70b", "llama-65b"]
    later = ["llama-2-70b", "llama-3-8b", "llama-3.1-8b", "mistral-7b", "mixtral-8x7b", "qwen3-0.6b", "gemma-2-2b"]
    assert set(PRESETS) == {*table3, *gpt, *gpt3, *encoders, *large, *later, "llama-7b", "decoder-block", "vit-small-example"}


@pytest.mark.parametrize("name", every(4, PRESETS, long=4))
def test_a_count_is_the_sum_over_the_built_model_and_takes_less_than_two_seconds(name: str) -> None:
    start = process_time()
    counted = compare_preset(PRESETS[name]).count.total
    assert process_time() - start < 2
    with torch.device("meta"):
        model = build_uninitialized(PRESETS[name].config())
    assert counted == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_a_count_is_the_published_one_or_says_why_not(name: str) -> None:
    preset = PRESETS[name]
    found = compare_preset(preset)
    missing = sum(each.parameters for each in preset.missing)
    assert re.search(r"\d{4}|Complete Guide|Application Examples", preset.source) and preset.section
    if preset.released is not None:
        assert found.count.total + missing == preset.released, "to the last parameter"
    if preset.missing or found.difference is None or abs(found.difference) > NEAR:
        assert preset.why
    if preset.active_parameters:
        assert found.count.active == pytest.approx(preset.active_parameters, rel=NEAR)
    if found.difference is not None and abs(found.difference) > NEAR:
        assert preset.parameters is not None
        with_missing = (found.comparable + missing) / preset.parameters - 1
        explained = abs(with_missing) < NEAR or preset.released == found.count.total
        assert explained or name in ("gpt3-xl", *TABLE_3), "whose figures are tested below"


def test_presets_that_existed_keep_their_counts() -> None:
    assert {name: compare_preset(PRESETS[name]).count.total for name in FORMER} == FORMER
    assert "gpt2" in PRESETS and load_preset("gpt2") == PRESETS["gpt2"]


def test_a_recipe_takes_the_model_without_its_vocabulary() -> None:
    assert "vocab_size" not in packaged_preset("gpt2")["model"]
    assert parse_model_config({"preset": "gpt2"}).vocab_size is None  # type: ignore[attr-defined]
    assert PRESETS["gpt2"].config() == parse_model_config({"preset": "gpt2", "vocab_size": 50_257})
    assert len(PRESETS["vit-base-16"].config().classes) == 1000  # type: ignore[attr-defined]


def test_a_family_shares_tables_and_a_preset_takes_precedence() -> None:
    shared, own = packaged_preset("llama-7b"), packaged_preset("llama-2-70b")
    assert own["model"]["norm"] == {"kind": "rmsnorm", "eps": 1e-5} and shared["model"]["norm"]["eps"] == 1e-6
    assert own["sizes"] == shared["sizes"] and own["source"] != shared["source"]


def test_an_unknown_preset_is_an_error_that_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="expected the name of a preset, found 'lama-65b'; did you mean llama-65b"):
        load_preset("lama-65b")
    with pytest.raises(ConfigError, match=r"^preset: expected the name of a preset, found 7; `transom recipes presets` lists them$"):
        packaged_preset(7)


TABLE_3 = {
    "transformer-base": 65,
    "transformer-base-d-key-16": 58,
    "transformer-base-d-key-32": 60,
    "transformer-base-layers-2": 36,
    "transformer-base-layers-4": 50,
    "transformer-base-layers-8": 80,
    "transformer-base-d-model-256": 28,
    "transformer-base-d-model-1024": 168,
    "transformer-base-d-ff-1024": 53,
    "transformer-base-d-ff-4096": 90,
}
"""The counts of table 3 of Vaswani et al. 2017 in millions, but that of its row "big"; its other rows have none."""


def with_symbols(name: str, symbols: int) -> int:
    """Count a preset of 2017 with another number of shared symbols."""
    preset = PRESETS[name].model_copy(update={"sizes": {"source_vocab_size": symbols, "target_vocab_size": symbols}})
    return compare_preset(preset).count.total


def test_one_vocabulary_gives_every_count_of_table_3_but_that_of_big() -> None:
    counts = {name: PRESETS[name].parameters for name in PRESETS if name.startswith("transformer-base")}
    assert {name: count for name, count in counts.items() if count} == {name: n * 10**6 for name, n in TABLE_3.items()}
    lowest, highest = [], []
    for name, millions in TABLE_3.items():
        d = with_symbols(name, 2) - with_symbols(name, 1)
        rest = with_symbols(name, 1) - d
        lowest.append(((millions - 0.5) * 1e6 - rest) / d)
        highest.append(((millions + 0.5) * 1e6 - rest) / d)
    assert (round(max(lowest)), round(min(highest))) == (40_931, 41_161)
    assert all(round(with_symbols(name, 41_000) / 1e6) == millions for name, millions in TABLE_3.items())
    assert round(with_symbols("transformer-big", 41_000) / 1e6) == 218 != 213
    assert round(with_symbols("transformer-big", 35_310) / 1e6) == round(with_symbols("transformer-big", 36_260) / 1e6) == 213
    assert "41,000" in PRESETS["transformer-base"].why


def transformer_2017(n: int, d: int, d_ff: int, h: int, d_k: int, d_v: int, symbols: int) -> int:
    """Count by hand: sub-layers with biases, a norm of 2 d after each, one shared table."""
    attention = 2 * (d * h * d_k + h * d_k) + (d * h * d_v + h * d_v) + (h * d_v * d + d)
    feed_forward = 2 * d * d_ff + d_ff + d
    return symbols * d + n * (attention + feed_forward + 4 * d) + n * (2 * attention + feed_forward + 6 * d)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("transformer-")])
def test_rows_of_table_3_by_hand(name: str) -> None:
    config = PRESETS[name].config()
    assert isinstance(config, Seq2SeqConfig)
    row = {
        "heads": lambda v: {"h": v, "d_k": 512 // v, "d_v": 512 // v},
        "d-key": lambda v: {"d_k": v},
        "layers": lambda v: {"n": v},
        "d-model": lambda v: {"d": v, "d_k": v // 8, "d_v": v // 8},
        "d-ff": lambda v: {"d_ff": v},
    }
    found = re.fullmatch(r"transformer-base-(heads|d-key|layers|d-model|d-ff)-(\d+)", name)
    varied = row[found[1]](int(found[2])) if found else {}
    big = {"d": 1024, "d_ff": 4096, "h": 16} if name == "transformer-big" else {}
    sizes = {"n": 6, "d": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64, "symbols": 37_000, **varied, **big}
    positions = 2 * config.max_seq_len * 512 if name.endswith("learned-positions") else 0
    assert compare_preset(PRESETS[name]).count.total == transformer_2017(**sizes) + positions


def gpt(n: int, d: int, symbols: int, length: int, heads: int | None = None) -> int:
    """Count GPT's decoder by hand; ``heads`` is the width of all heads together, by default d."""
    a = heads or d
    block = 3 * (d * a + a) + a * d + d + 8 * d * d + 5 * d + 4 * d
    return n * block + (symbols + length) * d + 2 * d


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt", gpt(12, 768, 40_478, 512) - 2 * 768),  # post-norm: no norm at the end
        ("gpt2", gpt(12, 768, 50_257, 1024)),
        ("gpt2-medium", gpt(24, 1024, 50_257, 1024)),
        ("gpt2-large", gpt(36, 1280, 50_257, 1024)),
        ("gpt2-xl", gpt(48, 1600, 50_257, 1024)),
        ("gpt3-small", gpt(12, 768, 50_257, 2048)),
        ("gpt3-medium", gpt(24, 1024, 50_257, 2048)),
        ("gpt3-large", gpt(24, 1536, 50_257, 2048)),
        ("gpt3-xl", gpt(24, 2048, 50_257, 2048, 24 * 128)),
        ("gpt3-2.7b", gpt(32, 2560, 50_257, 2048)),
        ("gpt3-6.7b", gpt(32, 4096, 50_257, 2048)),
        ("gpt3-13b", gpt(40, 5140, 50_257, 2048, 40 * 128)),
        ("gpt3-175b", gpt(96, 12_288, 50_257, 2048)),
        ("jurassic-1-178b", gpt(76, 13_824, 256_000, 2048)),
        ("megatron-turing-530b", gpt(105, 20_480, 50_257, 2048)),
    ],
)
def test_gpt_like_presets_by_hand(name: str, count: int) -> None:
    assert compare_preset(PRESETS[name]).count.total == count


def test_gpt3_xl_has_its_published_count_with_sixteen_heads() -> None:
    """Table 2.1 prints 24 heads of width 128 for d_model 2048, and 1.3 billion parameters."""
    assert gpt(24, 2048, 50_257, 2048, 24 * 128) / 1.3e9 - 1 == pytest.approx(0.167, abs=0.001)
    assert abs(gpt(24, 2048, 50_257, 2048) / 1.3e9 - 1) < NEAR
    assert "1.52 billion" in PRESETS["gpt3-xl"].why and "1.32 billion" in PRESETS["gpt3-xl"].why
    assert (round(gpt(24, 2048, 50_257, 2048, 24 * 128) / 1e9, 2), round(gpt(24, 2048, 50_257, 2048) / 1e9, 2)) == (1.52, 1.32)


def llama(n: int, d: int, d_ff: int, heads: int, kv_heads: int, d_head: int, symbols: int, tied: bool = False) -> int:
    """Count Llama's decoder by hand: grouped queries, three matrices of a gated network, norms without a shift, no biases."""
    attention = 2 * d * heads * d_head + 2 * d * kv_heads * d_head
    return n * (attention + 3 * d * d_ff + 2 * d) + d + (1 if tied else 2) * symbols * d


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-7b", llama(32, 4096, 11_008, 32, 32, 128, 32_000)),
        ("llama-65b", llama(80, 8192, 22_016, 64, 64, 128, 32_000)),
        ("llama-2-70b", llama(80, 8192, 28_672, 64, 8, 128, 32_000)),
        *((name, llama(32, 4096, 14_336, 32, 8, 128, 128_256)) for name in ("llama-3-8b", "llama-3.1-8b")),
        ("mistral-7b", llama(32, 4096, 14_336, 32, 8, 128, 32_000)),
        # eight networks instead of one, and a router
        ("mixtral-8x7b", llama(32, 4096, 8 * 14_336, 32, 8, 128, 32_000) + 32 * 8 * 4096),
        # a norm of each head's queries and keys
        ("qwen3-0.6b", llama(28, 1024, 3072, 16, 8, 128, 151_936, tied=True) + 28 * 2 * 128),
        # a second norm after each sub-layer
        ("gemma-2-2b", llama(26, 2304, 9216, 8, 4, 256, 256_000, tied=True) + 26 * 2 * 2304),
        # one norm per block for attention and feed-forward network
        ("palm-540b", llama(118, 18_432, 73_728, 48, 1, 256, 256_000, tied=True) - 118 * 18_432),
        # 32 buckets of distances for each of 128 heads
        ("lamda-137b", llama(64, 8192, 65_536, 128, 128, 128, 32_000, tied=True) + 32 * 128),
    ],
)
def test_llama_like_presets_by_hand(name: str, count: int) -> None:
    assert compare_preset(PRESETS[name]).count.total == count


def test_relative_positions_of_transformer_xl_make_up_for_gopher_and_chinchilla() -> None:
    for name, n, d, heads in (("gopher-280b", 80, 16_384, 128), ("chinchilla-70b", 80, 8192, 64)):
        preset = PRESETS[name]
        block = 4 * (d * d + d) + 8 * d * d + 5 * d + 2 * d
        assert compare_preset(preset).count.total == n * block + d + 32_000 * d + 32 * heads
        assert [each.parameters for each in preset.missing] == [n * d * d]
        assert preset.parameters is not None and abs((n * block + 32_000 * d + n * d * d) / preset.parameters - 1) < 0.002


def encoder(n: int, d: int) -> int:
    """Count n blocks of width d with biases, four times as many hidden units and two norms."""
    return n * (4 * (d * d + d) + 8 * d * d + 5 * d + 4 * d)


@pytest.mark.parametrize(("size", "n", "d"), [("base", 12, 768), ("large", 24, 1024)])
def test_encoders_by_hand(size: str, n: int, d: int) -> None:
    def masked_lm(symbols: int, types: int, bias: bool) -> int:
        return (symbols + 512 + types) * d + 2 * d + encoder(n, d) + d * d + d + 2 * d + symbols * bias

    names = (f"bert-{size}", f"roberta-{size}", f"vit-{size}-16")
    counts = {name: compare_preset(PRESETS[name]).count.total for name in names}
    assert counts[f"bert-{size}"] == masked_lm(30_522, 2, size == "large")
    assert counts[f"roberta-{size}"] == masked_lm(50_265, 1, True)
    patches = (224 // 16) ** 2
    logits = 1000 * d + (1000 if size == "large" else 0)
    assert counts[f"vit-{size}-16"] == 3 * 16**2 * d + d + d + (patches + 1) * d + encoder(n, d) + 2 * d + logits
    assert [each.parameters for each in PRESETS[f"bert-{size}"].missing][:2] == [d * d + d, 2 * d + 2]


def test_encoder_decoders_by_hand() -> None:
    d = 768
    attention, feed_forward = 4 * d * d, 8 * d * d
    t5 = 32_128 * d + 12 * (attention + feed_forward + 2 * d) + 12 * (2 * attention + feed_forward + 3 * d) + 2 * d + 2 * 32 * 12
    assert compare_preset(PRESETS["t5-base"]).count.total == t5
    bart = 50_265 * d + 2 * (1024 + 2) * d + encoder(6, d) + encoder(6, d) + 6 * (attention + 4 * d + 2 * d)
    assert compare_preset(PRESETS["bart-base"]).count.total == bart
    assert compare_preset(PRESETS["marian"]).count.total == transformer_2017(6, 512, 2048, 8, 64, 64, 58_101) + 58_101


@pytest.mark.parametrize(
    ("name", "blocks", "tied", "untied"),
    [
        ("gpt3-175b", -0.004, -0.0002, 0.003),
        ("gpt2", -0.32, -0.007, 0.30),
        ("gpt2-xl", -0.053, -0.002, 0.05),
        ("megatron-turing-530b", -0.002, -0.0003, 0.002),
        ("llama-65b", -0.013, -0.009, -0.005),
        ("llama-2-70b", -0.066, -0.062, -0.058),
        ("mixtral-8x7b", -0.862, -0.859, -0.856),
    ],
)
def test_the_formulas_of_the_articles_have_these_errors(name: str, blocks: float, tied: float, untied: float) -> None:
    config, exact = PRESETS[name].config(), compare_preset(PRESETS[name]).count.total
    assert isinstance(config, DecoderConfig) and config.vocab_size
    estimates = estimate_parameters(config)
    n, d, symbols = config.n_layers, config.d_model, config.vocab_size
    assert estimates == (12 * n * d**2, symbols * d + 12 * n * d**2, symbols * d + n * (4 * d**2 + 8 * d**2 + 2 * d) + d * symbols)
    assert [estimate / exact - 1 for estimate in estimates] == pytest.approx([blocks, tied, untied], abs=0.0055)
    if name == "gpt3-175b":
        assert round(96 * 8 * 12_288**2 / 1e9) == 116, "the feed-forward networks alone, as article 004 prints"


def test_presets_have_the_kinds_and_training_fields_of_their_rows() -> None:
    kinds: Mapping[str, type] = {
        "t5-base": Seq2SeqConfig,
        "roberta-base": MaskedLMConfig,
        "vit-large-16": VisionTransformerConfig,
        "palm-540b": DecoderConfig,
    }
    assert all(isinstance(PRESETS[name].config(), kind) for name, kind in kinds.items())
    trained: dict[str, Preset] = {name: preset for name, preset in PRESETS.items() if preset.training}
    assert {name: preset.training["label_smoothing"] for name, preset in trained.items()} == {
        "transformer-base-label-smoothing-0": 0.0,
        "transformer-base-label-smoothing-0.2": 0.2,
    }
