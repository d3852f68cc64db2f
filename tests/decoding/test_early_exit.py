"""Early exit: against a token-by-token reference, exact when no token exits, and independent of the batch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transom.config.data import TokenizerConfig
from transom.config.decoding import SamplingConfig
from transom.config.model import DecoderConfig
from transom.config.recurrent import RecurrentDecoderConfig
from transom.data.batch import PaddedSequences
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.predictors.generator import Generator
from transom.decoding.search.early_exit import EarlyExitDecoder
from transom.errors import ConfigError
from transom.layers.attention import explicit_attention
from transom.layers.block import PreNormBlock
from transom.models.build import build_model
from transom.models.decoder import DecoderOnlyTransformer

CLOSE = {"rtol": 0, "atol": 1e-10}
TOKENS = torch.tensor([[5, 3, 8, 8, 4, 6], [7, 2, 3, 5, 5, 1], [4, 4, 4, 1, 7, 3]])
PLACEMENTS = ["post", "pre", "sandwich", "parallel"]
ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"value_residual": "learned", "pattern": {"kind": "window", "size": 3}},
    "linear": {"approximation": "linear", "value_residual": "fixed"},
    "performer": {"approximation": {"kind": "performer", "n_features": 8}},
}


def decoder(vocab_size: int = 9, **fields: Any) -> DecoderOnlyTransformer:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"d_model": 12, "n_heads": 3, "d_ff": 16, "n_layers": 4, "max_seq_len": 32, "tie_embeddings": False}
    model = build_model(DecoderConfig.model_validate(sizes | {"vocab_size": vocab_size} | fields))
    assert isinstance(model, DecoderOnlyTransformer)
    with torch.no_grad():
        model.unembedding.weight.normal_()
    return model.double().eval()


def read(model: DecoderOnlyTransformer, threshold: float, tokens: Tensor = TOKENS) -> tuple[Tensor, EarlyExitDecoder]:
    """Run all tokens of each row one by one."""
    steps = EarlyExitDecoder(model, threshold)
    cache = steps.start(PaddedSequences.pad(tokens[:, :1].tolist()), 1, tokens.shape[1])
    return torch.cat([steps.step(tokens[:, i : i + 1], cache) for i in range(tokens.shape[1])], 1), steps


def by_hand(model: DecoderOnlyTransformer, tokens: list[int], threshold: float) -> tuple[Tensor, int]:
    """Evaluate one row by the equations of a pre-norm decoder without positions; also count the blocks run."""
    keys: list[list[Tensor]] = [[] for _ in model.decoder.blocks]
    values: list[list[Tensor]] = [[] for _ in model.decoder.blocks]
    logits, depth_stats = [], 0
    for token in tokens:
        x, stopped = model.embedding.tokens.weight[token], False
        for i, block in enumerate(model.decoder.blocks):
            assert isinstance(block, PreNormBlock)
            y = block.attn_residual.norm(x)
            q, k, v = (part(y).view(1, 3, 1, 4) for part in (block.attn.q, block.attn.k, block.attn.v))
            keys[i].append(k)
            values[i].append(v)
            if stopped:
                continue
            z = explicit_attention(q, torch.cat(keys[i], 2), torch.cat(values[i], 2))
            x = x + block.attn.o(z.flatten())
            x = x + block.ff(block.ff_residual.norm(x))
            depth_stats += 1
            assert model.decoder.norm is not None
            out = model.unembedding.weight @ model.decoder.norm(x)
            first, second = sorted(F.softmax(out, -1).tolist())[:-3:-1]
            stopped = first - second >= threshold
        logits.append(out)
    return torch.stack(logits), depth_stats


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.6])
@torch.no_grad()
def test_it_is_the_reference_token_by_token(threshold: float) -> None:
    model = decoder(position="none")
    found, steps = read(model, threshold)
    expected = [by_hand(model, row, threshold) for row in TOKENS.tolist()]
    assert torch.allclose(found, torch.stack([logits for logits, _ in expected]), **CLOSE)
    assert sum(n for _, n in steps.depth_stats) == sum(n for _, n in expected)
    assert 1 < steps.mean_exit_depth < 4, "some tokens stopped early, and some did not"


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@torch.no_grad()
def test_the_ends_are_the_whole_model_and_its_first_block_and_rows_are_as_alone(placement: str, attention: dict[str, Any]) -> None:
    model = decoder(norm_placement=placement, attention=attention)
    cache = model.start(PaddedSequences.pad(TOKENS[:, :1].tolist()), 1, 6)
    whole = torch.cat([model.step(TOKENS[:, i : i + 1], cache) for i in range(6)], 1)
    found, steps = read(model, 1.1)
    assert torch.equal(found, whole) and steps.mean_exit_depth == 4
    shallow = decoder(norm_placement=placement, attention=attention, n_layers=1)
    state = model.state_dict()
    shallow.load_state_dict({name: state[name] for name in shallow.state_dict()})
    found, steps = read(model, 0.0)
    assert torch.allclose(found, read(shallow, 1.1)[0], **CLOSE) and steps.mean_exit_depth == 1
    together, alone = read(model, 0.4)[0], [read(model, 0.4, row[None])[0][0] for row in TOKENS]
    assert torch.allclose(together, torch.stack(alone), **CLOSE)


def generator(threshold: float, model: Any = None) -> Generator:
    tokenizer = Tokenizer.train(["abcdefgh"], TokenizerConfig(kind="char", vocab_size=12))
    sampling = SamplingConfig(early_exit_threshold=threshold, temperature=0.0, max_new_tokens=8, min_new_tokens=7)
    return Generator(model or decoder(tokenizer.vocab_size), tokenizer, sampling)


def test_a_generator_stops_its_tokens_early_where_it_is_asked_to() -> None:
    whole, early = generator(1.0), generator(0.2)
    prompts = ["abc", "hg", ""]
    plain = whole.generate(prompts)
    unasked = early.continuations(prompts, early_exit_threshold=1.0)
    assert unasked.early_exit is None and [each.text for (each,) in unasked] == plain
    told = early.continuations(prompts)
    found = [each.text for (each,) in told]
    assert told.early_exit is not None and 1 < told.early_exit.mean_exit_depth < 4
    assert early.generate(prompts) == found
    assert found == [early.generate([prompt])[0] for prompt in prompts] == ["".join(early.stream(prompt)) for prompt in prompts]
    assert found != plain


def test_streams_and_calls_of_one_generator_each_tell_of_their_own_exits() -> None:
    one = generator(0.2)

    def depth_stats(exits: EarlyExitDecoder | None) -> list[tuple[int, int]]:
        assert exits is not None
        return exits.depth_stats

    def alone(prompt: str, threshold: float) -> tuple[list[str], list[tuple[int, int]]]:
        stream = generator(0.2).stream(prompt, early_exit_threshold=threshold)
        return list(stream), depth_stats(stream.early_exit)

    first, second, plain = one.stream("abc"), one.stream("hg", early_exit_threshold=0.9), one.stream("hg", early_exit_threshold=1.0)
    begun: tuple[list[str], ...] = ([next(first)], [next(second)], [next(plain)])
    told = one.continuations(["abc", "hg"], early_exit_threshold=0.05)
    calls = list(depth_stats(told.early_exit))
    texts = [said + list(stream) for said, stream in zip(begun, (first, second, plain), strict=True)]
    assert plain.early_exit is None and texts[2] == list(generator(1.0).stream("hg"))
    assert (texts[0], depth_stats(first.early_exit)) == alone("abc", 0.2)
    assert (texts[1], depth_stats(second.early_exit)) == alone("hg", 0.9)
    assert depth_stats(first.early_exit) != depth_stats(second.early_exit) and depth_stats(told.early_exit) == calls
    assert calls == depth_stats(generator(0.2).continuations(["abc", "hg"], early_exit_threshold=0.05).early_exit)


@pytest.mark.parametrize(
    "model",
    [
        lambda: build_model(RecurrentDecoderConfig(vocab_size=12, d_model=8)),
        lambda: decoder(12, depth="mod"),
    ],
    ids=["recurrent", "routed"],
)
def test_what_has_no_exits_says_so(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"decoding.early_exit_threshold = 0.5 requires model.kind = 'decoder' with model.depth = 'full'"):
        generator(1.0, model()).generate(["a"], early_exit_threshold=0.5)
