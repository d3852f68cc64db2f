"""The compiled step gives what the flat layout gives, a product what its formula gives; no row or thread changes another's."""

import ctypes
from collections.abc import Callable, Sequence

import pytest
import torch

from tests.decoding.models import letter_tokenizers, tiny_model
from tests.decoding.tables import EOS, FORBIDDEN, SOS
from tests.kernels.sanitize import EMULATED
from transom.config.model import DecoderConfig
from transom.data.batch import PaddedSequences
from transom.decoding.backends import decoder_backend
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.backends.fused_inference import FusedSeq2Seq
from transom.decoding.backends.native_decoder import (
    ACTIVATION_CODES,
    WEIGHT_TYPES,
    NativeLanguageModel,
    NativeSeq2Seq,
    TiledLinear,
    WeightType,
    unsupported_reason,
)
from transom.decoding.predictors.generator import Generator
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.interfaces import LengthLimits
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search
from transom.errors import ConfigError
from transom.kernels.native_library import build_and_load, load_native_library
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer
from transom.models.seq2seq import Seq2SeqTransformer

pytestmark = pytest.mark.kernels

needs_library = pytest.mark.skipif(load_native_library().library is None, reason=load_native_library().reason)
VOCAB = 43
SIZES = {"d_model": 80, "n_heads": 3, "d_head": 16, "d_ff": 72}
LLAMA: dict[str, object] = {"norm": {"kind": "rmsnorm"}, "position": {"kind": "rotary"}, "feed_forward": {"kind": "swiglu"}}
VARIANTS: list[dict[str, object]] = [
    {},
    {"norm_placement": "pre"},
    {"d_value": 32},
    {"d_head": 48, "d_value": 112, "d_model": 72},
    {"attention": {"qkv_bias": False, "output_bias": False}, "feed_forward": {"bias": False}},
    {"tie_embeddings": "none", "scale_embeddings": False, "norm": {"kind": "layernorm", "bias": False}},
    {"logit_scale": 0.3, "logit_softcap": 2.0, "head_bias": True, "embedding_norm": True},
    {"decoder_n_heads": 2, "decoder_d_ff": 40},
    LLAMA | {"n_heads": 4, "n_kv_heads": 2},
]
LANGUAGE_VARIANTS: list[dict[str, object]] = [
    LLAMA | {"n_kv_heads": 2, "norm_placement": "pre"},
    {
        "n_kv_heads": 1,
        "position": {"kind": "rotary", "partial_rotary_factor": 0.5},
        "feed_forward": {"kind": "glu", "bias": True},
        "d_value": 32,
    },
    {"position": {"kind": "learned"}, "feed_forward": {"kind": "gelu-tanh"}, "norm_placement": "pre"},
    LLAMA | {"position": {"kind": "rotary", "rope_scaling": {"kind": "llama3", "factor": 4.0}}},
    LLAMA | {"position": {"kind": "rotary", "rope_theta": [500.0, 500.0], "rope_scaling": {"kind": "yarn", "factor": 4.0}}},
    {"position": {"kind": "none"}, "feed_forward": {"kind": "gelu"}, "norm": {"kind": "none"}},
    {"position": {"kind": "sinusoidal"}, "feed_forward": {"kind": "squared-relu"}, "mask": {"kind": "prefix-lm"}},
    {"feed_forward": {"kind": "geglu"}, "attention": {"qkv_bias": False, "output_bias": True}},
    {"feed_forward": {"kind": "reglu"}, "norm_placement": "pre"},
    {"feed_forward": {"kind": "silu"}, "norm": {"kind": "rmsnorm", "eps": 0.1}},
    {"feed_forward": {"kind": "geglu-tanh"}, "logit_scale": 0.3, "logit_softcap": 2.0},
]
PARALLEL: list[dict[str, object]] = [{"norm_placement": placement} for placement in ("parallel", "parallel-separate")]
SOURCES = [[3, 4, 5, 6, 2], [7, 2], [40, 8, 3, 2], [5, 2], [*range(3, 23), 2]]
TOLERANCE: dict[WeightType, float] = {"bf16": 0.02, "int8": 0.06, "fp32": 1e-5}


def library() -> ctypes.CDLL:
    found = load_native_library().library
    assert found is not None
    return found


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def model_of(fields: dict[str, object] | None = None, dtype: torch.dtype = torch.float64) -> Seq2SeqTransformer:
    return tiny_model(VOCAB, dtype=dtype, **(SIZES | (fields or {})))


def compiled_of(model: Seq2SeqTransformer, kind: WeightType) -> NativeSeq2Seq:
    return NativeSeq2Seq(library(), model, kind, model.encode)


def language_model(fields: dict[str, object]) -> DecoderOnlyTransformer:
    torch.manual_seed(1)
    model = build_model(
        DecoderConfig.model_validate(SIZES | {"n_heads": 4, "n_layers": 2, "vocab_size": VOCAB, "max_seq_len": 32} | fields)
    )
    assert isinstance(model, DecoderOnlyTransformer)
    with torch.no_grad():
        for matrix in (p for p in model.decoder.parameters() if p.dim() == 2):
            matrix *= 2
        model.unembedding.weight.normal_(std=0.5)
    return model.double().eval()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@needs_library
@pytest.mark.parametrize("kind", list(WEIGHT_TYPES))
@pytest.mark.parametrize("fields", VARIANTS)
@pytest.mark.parametrize("n_threads", [1, 3])
@torch.inference_mode()
def test_steps_are_near_the_models(fields: dict[str, object], kind: WeightType, n_threads: int, threads: object) -> None:
    assert callable(threads)
    threads(n_threads)
    model = model_of(fields)
    exact, fast = model, compiled_of(model_of(fields, torch.float32), kind)
    source, n_beams = PaddedSequences.pad(SOURCES), 4
    exact_cache, cache = exact.start(exact.encode(source), n_beams, 20), fast.start(fast.encode(source), n_beams, 20)
    draw = torch.Generator().manual_seed(1)
    for new in (1, 3, 1, 12, 2):
        tokens = torch.randint(3, VOCAB, (n_beams * len(SOURCES), new), generator=draw)
        found, expected = fast.step(tokens, cache), exact.step(tokens, exact_cache)
        assert found.shape == expected.shape
        assert distance(found, expected) < TOLERANCE[kind]
        parents = torch.randint(0, n_beams, (len(SOURCES), n_beams), generator=draw) + n_beams * torch.arange(len(SOURCES))[:, None]
        for each in (exact_cache, cache):
            each.reorder(parents.flatten())


@needs_library
@pytest.mark.parametrize("kind", list(WEIGHT_TYPES))
@pytest.mark.parametrize("fields", LANGUAGE_VARIANTS)
@torch.inference_mode()
def test_steps_of_a_language_model_are_near_its_own(fields: dict[str, object], kind: WeightType) -> None:
    exact = language_model(fields)
    assert unsupported_reason(exact) is None
    fast = NativeLanguageModel(library(), language_model(fields).float(), kind)
    for prompts in ([[2, 9, 11, 4], [2, 5, 6, 7], [2, 30, 31, 3]], [[2]]):
        prompt, n_beams = PaddedSequences.pad(prompts), 2
        exact_cache, cache = exact.start(exact.encode(prompt), n_beams, 20), fast.start(fast.encode(prompt), n_beams, 20)
        tokens = prompt.tokens[:, -1:].repeat_interleave(n_beams, 0)
        draw = torch.Generator().manual_seed(1)
        for new in (1, 3, 1, 12):
            found, expected = fast.step(tokens, cache), exact.step(tokens, exact_cache)
            assert found.shape == expected.shape
            assert distance(found, expected) < TOLERANCE[kind]
            parents = torch.randint(0, len(tokens), (len(tokens),), generator=draw)
            for each in (exact_cache, cache):
                each.reorder(parents)
            tokens = torch.randint(3, VOCAB, (len(tokens), new), generator=draw)


@needs_library
@torch.inference_mode()
def test_a_text_is_the_same_beside_others_and_by_any_number_of_threads(threads: object) -> None:
    assert callable(threads)
    model = NativeLanguageModel(library(), language_model(LANGUAGE_VARIANTS[0]).float(), "bf16")
    prompts = [[2, 9, 11, 4], [2, 5, 6, 7], [2, 30, 31, 3]]

    def run(rows: list[list[int]], n_threads: int) -> torch.Tensor:
        threads(n_threads)
        cache = model.start(PaddedSequences.pad([row[:1] for row in rows]), 1, 24)
        threads(1)
        return torch.cat([model.step(torch.tensor([[row[i % 4]] for row in rows]), cache) for i in range(20)], 1)

    expected = run(prompts, 1)
    assert torch.equal(run(prompts, 3), expected) and torch.equal(run(prompts[1:2], 2), expected[1:2])


@pytest.mark.parametrize(
    "position",
    [
        {"rope_theta": [500.0, 10000.0]},
        {"rope_scaling": ["none", {"kind": "linear", "factor": 2.0}]},
        {"rope_scaling": {"kind": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"kind": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_seq_len": 8}},
    ],
)
def test_rotary_tables_of_several_blocks_or_lengths_are_left_to_the_model(position: dict[str, object]) -> None:
    model = language_model(LLAMA | {"position": {"kind": "rotary"} | position}).bfloat16()
    assert unsupported_reason(model) == "it does not support some component of this model"
    assert build_decoder_backend(model) is model


@needs_library
@torch.inference_mode()
def test_sources_can_leave() -> None:
    model = model_of()
    exact, fast = model, compiled_of(model_of(dtype=torch.float32), "bf16")
    source = PaddedSequences.pad(SOURCES)
    exact_cache, cache = exact.start(exact.encode(source), 2, 8), fast.start(fast.encode(source), 2, 8)
    kept, rows = torch.tensor([1, 4]), torch.tensor([3, 2, 8, 8])
    draw = torch.Generator().manual_seed(1)
    for n_rows in (10, 4, 4, 4):
        tokens = torch.randint(3, VOCAB, (n_rows, 1), generator=draw)
        assert distance(fast.step(tokens, cache), exact.step(tokens, exact_cache)) < TOLERANCE["bf16"]
        for each in (exact_cache, cache):
            if n_rows == 10:
                each.select_sources(kept)
            each.reorder(rows if n_rows == 10 else torch.tensor([1, 0, 3, 3]))


@needs_library
@pytest.mark.parametrize("kind", list(WEIGHT_TYPES))
@torch.inference_mode()
def test_a_row_is_the_same_beside_any_others_and_by_any_number_of_threads(kind: WeightType, threads: object) -> None:
    assert callable(threads)
    model = compiled_of(model_of(dtype=torch.float32), kind)

    def run(sources: list[list[int]], n_threads: int) -> torch.Tensor:
        memory = alone.__class__(torch.cat([alone.states[i : i + 1] for i in places(sources)]), source_all.segments[places(sources)])
        threads(n_threads)  # the cache's team is as large as the threads allow when it is made
        cache = model.start(memory, 1, 20)
        threads(1)
        return torch.cat([model.step(torch.full((len(sources), 1), 3 + i), cache) for i in range(20)], 1)

    def places(sources: list[list[int]]) -> list[int]:
        return [SOURCES.index(source) for source in sources]

    source_all = PaddedSequences.pad(SOURCES)
    alone = model.encode(source_all)
    expected = run(SOURCES, 1)
    assert torch.equal(run(SOURCES, 3), expected)
    assert torch.equal(run(SOURCES[2:3], 2), expected[2:3])
    for n_threads in (1, 3):  # three threads divide so many rows
        assert torch.equal(run([*SOURCES, *SOURCES, *SOURCES, *SOURCES][::-1], n_threads)[:5].flip(0), expected)


@needs_library
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 16, 17, 70, 500])
@pytest.mark.parametrize("inner, outer", [(64, 16), (40, 21), (130, 5), (64, 53)])
def test_products_equal_their_formula(rows: int, inner: int, outer: int, n_threads: int) -> None:
    draw = torch.Generator().manual_seed(1)
    weight, bias, x = (torch.randn(*shape, generator=draw) for shape in ((outer, inner), (outer,), (rows, inner)))
    weight[1], x[-1] = 0, 0
    round_to: dict[WeightType, Callable[[torch.Tensor], torch.Tensor]] = {
        "int8": rounded,
        "bf16": lambda x: x.bfloat16().double(),
        "fp32": torch.Tensor.double,
    }
    for kind in WEIGHT_TYPES:
        expected = round_to[kind](x) @ round_to[kind](weight).T + bias
        found = product(x, kind, weight, bias, n_threads=n_threads)
        differ = (found.double() - expected).abs() > 3e-5
        assert differ.double().mean() <= (2e-3 if kind == "int8" else 0), "rare ties are rounded otherwise in float64"
        assert torch.equal(found[:1], product(x[:1], kind, weight, bias)), "a row is the same beside any others"


def product(
    x: torch.Tensor,
    kind: WeightType,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    lib: ctypes.CDLL | None = None,
    n_threads: int = 1,
) -> torch.Tensor:
    tiled, y = TiledLinear(lib or library(), kind, weight, bias, activation), x.new_empty(len(x), len(weight))
    (lib or library()).transom_linear(WEIGHT_TYPES[kind], ctypes.byref(tiled.layout), x.data_ptr(), len(x), y.data_ptr(), n_threads)
    return y


@needs_library
@pytest.mark.parametrize("activation", [each for each in ACTIVATION_CODES if each is not None])
def test_activations_equal_pytorch_s(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.cat([torch.linspace(-12, 12, 9999), torch.tensor([-1e4, -90.0, -0.0, 1e-20, 90.0, 1e4])])
    found = product(x[:, None].bfloat16().float(), "bf16", torch.ones(1, 1), activation=activation)
    expected = activation(x[:, None].bfloat16().double())
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-6)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Round each row to 255 values; multiplied back."""
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (x.double() / scale).round(), 0.0) * scale


NO_MATRIX_UNIT = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")


@pytest.mark.long  # compiles a library each
@needs_library
@pytest.mark.parametrize(
    "flags",
    [NO_MATRIX_UNIT, (*NO_MATRIX_UNIT, "-mno-avx512bf16"), EMULATED],
    ids=["no matrix unit", "no bfloat16 either", "emulated matrix unit"],
)
def test_on_other_processors_the_numbers_are_the_same(flags: Sequence[str]) -> None:
    other, _ = build_and_load(*flags)
    draw = torch.Generator().manual_seed(1)
    weight, x = torch.randn(37, 200, generator=draw), torch.randn(83, 200, generator=draw)
    for n in (*range(1, 20), 83):  # as many rows at once as there are forms of the product, and more
        ours, theirs = (product(x[:n], "int8", weight, lib=lib) for lib in (library(), other))
        assert torch.equal(ours, theirs)
        ours, theirs = (product(x[:n], "bf16", weight, lib=lib) for lib in (library(), other))
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-4)
        assert torch.equal(product(x[:n], "fp32", weight), product(x[:n], "fp32", weight, lib=other))
        assert torch.equal(theirs[-1:], product(x[n - 1 : n], "bf16", weight, lib=other)), "a row is the same beside any others"


@needs_library
def test_searches_find_what_the_model_finds() -> None:
    model = model_of({"norm_placement": "pre", "seed": 2})
    limits = LengthLimits(torch.zeros(len(SOURCES), dtype=torch.long), torch.tensor([7, 6, 7, 6, 7]))

    def run(stepper: object) -> list[list[tuple[int, ...]]]:
        found = search(
            stepper,
            SearchRequest(PaddedSequences.pad(SOURCES), BeamSearch(EOS, 4), limits, SOS, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))]),
        )  # type: ignore[arg-type]
        return [[h.tokens for h in of_source] for of_source in found]

    expected = run(model)
    assert run(compiled_of(model.float(), "bf16")) == expected
    assert len({token for of_source in expected for tokens in of_source for token in tokens}) > 8


@needs_library
def test_what_is_compiled_and_what_is_not() -> None:
    assert isinstance(build_decoder_backend(model_of(dtype=torch.bfloat16)), NativeSeq2Seq)
    assert isinstance(build_decoder_backend(model_of(dtype=torch.float64)), FusedSeq2Seq)
    assert (build_decoder_backend(model_of(dtype=torch.float32))).kind == "fp32"  # type: ignore[attr-defined]
    assert isinstance(build_decoder_backend(model_of(dtype=torch.float32), int8=True), NativeSeq2Seq)
    assert isinstance(build_decoder_backend(tiny_model(VOCAB, dtype=torch.bfloat16, d_head=3)), FusedSeq2Seq)
    with pytest.raises(ConfigError, match=r"precision = 'int8' requires the native decoder, but it requires head .* found d_head 3"):
        build_decoder_backend(tiny_model(VOCAB, d_head=3), int8=True)
    with pytest.raises(ConfigError, match="it does not support some component"):
        build_decoder_backend(tiny_model(VOCAB, norm={"kind": "dyt"}), int8=True)
    language = language_model(LANGUAGE_VARIANTS[0])
    assert isinstance(build_decoder_backend(language, torch.bfloat16), NativeLanguageModel) and build_decoder_backend(language) is language
    for other in ({"attention": {"softcap": 9.0}}, {"position": {"kind": "alibi"}}, *PARALLEL):
        model = language_model(other).bfloat16()
        assert build_decoder_backend(model) is model


@needs_library
def test_without_memory_for_a_copy_of_the_weights_the_model_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model(LANGUAGE_VARIANTS[0]).float()
    needed = sum(p.nbytes for p in model.decoder.parameters()) + model.unembedding.weight.nbytes
    for free, decodes in ((2 * needed, True), (2 * needed - 2, False)):
        monkeypatch.setattr(decoder_backend, "free_memory", lambda free=free: free)
        assert isinstance(build_decoder_backend(model), NativeLanguageModel) == decodes
    assert isinstance(build_decoder_backend(model, int8=True), NativeLanguageModel), "asked for by name"


@needs_library
def test_8_bits_and_early_exits_are_refused_together() -> None:
    tokenizer = letter_tokenizers().source
    model = language_model(LANGUAGE_VARIANTS[0] | {"vocab_size": tokenizer.vocab_size})
    eight, wide = (
        Generator(model.bfloat16(), tokenizer, decoder_backend=build_decoder_backend(model, int8=bits)) for bits in (True, False)
    )
    with pytest.raises(ConfigError, match=r"decoding\.early_exit_threshold = 0\.5: expected a precision other than int8"):
        eight.generate(["abc"], early_exit_threshold=0.5)
    assert eight.continuations(["abc"], early_exit_threshold=1.0, max_new_tokens=2).early_exit is None
    assert wide.continuations(["abc"], early_exit_threshold=0.5, max_new_tokens=2).early_exit is not None
