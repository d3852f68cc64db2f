"""Text generation equals generation without a cache, in any batch, streamed or not; and scoring of texts."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.decoding.models import LETTERS, letter_tokenizers
from transom.config.decoding import SamplingConfig
from transom.config.model import AnyModel
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.tokenizer.special_tokens import EOS, PAD, SOS, UNK
from transom.decoding.predictors.generator import Generator, _settled_length
from transom.decoding.predictors.likelihood import bits_per_byte, perplexity
from transom.decoding.predictors.text_scoring import score_parts
from transom.errors import ConfigError, DataError
from transom.models.base import LanguageModel
from transom.models.build import build_model

TOKENIZER = letter_tokenizers().source
MOST = 24


def tiny_decoder(seed: int = 1, **fields: Any) -> LanguageModel:
    """Build a character language model with weights scaled up from initialization, so that its outputs vary."""
    torch.manual_seed(seed)
    size = {"d_model": 16, "n_layers": 2, "max_seq_len": MOST, "vocab_size": TOKENIZER.vocab_size, "tie_embeddings": False}
    own = {} if "kind" in fields else {"kind": "decoder", "n_heads": 4, "d_ff": 24}
    model = build_model(TypeAdapter(AnyModel).validate_python(size | own | fields))
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for matrix in (p for p in model.get_submodule("decoder").parameters() if p.dim() == 2):
            matrix *= 2
        model.unembedding.weight.normal_(std=0.5)
    return model.double().eval()


MODEL = tiny_decoder()
GENERATOR = Generator(MODEL, TOKENIZER, SamplingConfig(max_new_tokens=12))
PROMPTS = ["abc", "", "hgfe d", "abc", "c"]


@torch.inference_mode()
def greedily(model: LanguageModel, prompt: str, n: int) -> str:
    """Continue a text by full forward passes, without a cache."""
    tokens = [EOS, *TOKENIZER.encode(prompt)]
    new: list[int] = []
    while len(new) < n:
        text = PaddedSequences.pad([tokens + new])
        logits = model(LanguageBatch(text, text.tokens, (0,)))[0, -1]
        logits[[PAD, SOS, UNK]] = -math.inf
        token = int(logits.argmax())
        if token == EOS:
            break
        new.append(token)
    return TOKENIZER.decode(new)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"position": "learned", "norm": "layernorm"},
        {"position": "alibi", "n_kv_heads": 1},
        {"norm_placement": "parallel"},
        {"kind": "recurrent-decoder", "cell": "lstm"},
        {"kind": "recurrent-decoder", "cell": "gru"},
    ],
)
def test_temperature_zero_is_the_likeliest_token_each_time(fields: dict[str, Any]) -> None:
    model = tiny_decoder(3, **fields)
    found = Generator(model, TOKENIZER).generate(PROMPTS, temperature=0.0, max_new_tokens=12)
    assert found == [greedily(model, prompt, 12) for prompt in PROMPTS]
    assert any(found), "a model that says nothing shows nothing"


@pytest.mark.long
def test_a_text_is_the_same_in_any_batch() -> None:
    whole = GENERATOR.continuations(PROMPTS, 3)
    assert GENERATOR.continuations(PROMPTS, 3, batch_rows=1) == whole
    assert GENERATOR.continuations(PROMPTS[2:3], 2) == [whole[2][:2]]
    assert whole[0] == whole[3], "the same prompt"
    assert GENERATOR.generate(PROMPTS) == [answers[0].text for answers in GENERATOR.continuations(PROMPTS, 1)]
    texts = [answer.text for answers in whole for answer in answers]
    assert len(set(texts)) > 9, "each text has its own draws"
    assert GENERATOR.continuations(PROMPTS, 3, seed=2) != whole


@pytest.mark.long
@settings(max_examples=25)
@given(st.text(LETTERS, max_size=30), st.integers(0, 5), st.sampled_from([(), ("b",), ("ab", "\n"), ("gh",)]), st.integers(1, 60))
def test_pieces_of_a_stream_are_the_text(prompt: str, seed: int, stop: tuple[str, ...], n: int) -> None:
    whole = GENERATOR.continuations([prompt], seed=seed, stop=stop, max_new_tokens=n)[0][0]
    pieces = list(GENERATOR.stream(prompt, seed=seed, stop=stop, max_new_tokens=n))
    assert "".join(pieces) == whole.text and all(pieces)
    assert not any(text in whole.text for text in stop)
    assert {"stop": bool(stop), "length": whole.n_tokens == n, "end": True}[whole.finish_reason]
    assert whole.n_tokens <= n and len(whole.text) <= whole.n_tokens


def test_a_text_that_outgrows_the_model_goes_on_from_its_last_half() -> None:
    never = Generator(MODEL, TOKENIZER, SamplingConfig(max_new_tokens=50, min_new_tokens=49))
    (long,) = never.continuations(["abcd"])[0]
    assert long.n_tokens == 50 and long.finish_reason == "length" and long.windows == math.ceil((50 - (MOST - 5)) / (MOST // 2))
    (first,) = never.continuations(["abcd"], max_new_tokens=MOST - 5, min_new_tokens=MOST - 6)[0]
    assert long.text.startswith(first.text) and first.windows == 0
    (far,) = never.continuations(["abcd" * 20], max_new_tokens=5, min_new_tokens=4)[0]
    assert (far.n_tokens, far.windows) == (5, 1), "the prompt alone is too long"


def test_what_is_too_long_is_refused_where_asked() -> None:
    with pytest.raises(DataError, match=r"here:2: expected prompt and new text to fit model.max_seq_len = 24, found 21 and 12 tokens"):
        GENERATOR.generate(["a", "ab" * 10], too_long="refuse", name="here")
    assert GENERATOR.generate(["a", "ab" * 5], too_long="refuse")


def test_fewest_tokens_are_kept_and_a_penalty_ends_repetition() -> None:
    assert all(answer.n_tokens >= 11 for answers in GENERATOR.continuations(PROMPTS, 4, min_new_tokens=11) for answer in answers)
    (plain,) = GENERATOR.generate(["abc"], temperature=0.0, max_new_tokens=16, min_new_tokens=15)
    (varied,) = GENERATOR.generate(["abc"], temperature=0.0, max_new_tokens=16, min_new_tokens=15, presence_penalty=50.0)
    assert len(set(varied)) >= min(len(LETTERS), 12) > len(set(plain))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1.0}, "decoding: temperature: expected a number greater than or equal to 0, found -1.0"),
        ({"stop": ("",)}, "decoding: stop"),
        ({"top_p": 0.0}, "top_p: expected"),
        ({"min_new_tokens": 12}, "min_new_tokens below"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"too_long": "cut"}, "too_long"),
        ({"tempreture": 0.5}, "found 'tempreture'; did you mean temperature?"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        GENERATOR.generate(["a"], **options)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_one_text_is_no_list_and_none_gives_none() -> None:
    for call in (GENERATOR.generate, GENERATOR.score):
        with pytest.raises(DataError, match=r"put it in brackets: \[text\]"):
            call("abc")
    with pytest.raises(ConfigError, match="at least 1 text per prompt"):
        GENERATOR.continuations(["a"], 0)
    assert GENERATOR.generate([]) == [] and GENERATOR.score([]) == []


@torch.inference_mode()
def log_p_of_tokens(text: str, overlap: int) -> list[float]:
    """Compute log p of each token of a text and of the end token, each from the previous tokens of its window."""
    tokens, found = [EOS, *TOKENIZER.encode(text), EOS], list[float]()
    for place in range(1, len(tokens)):
        start = max(0, (place - 1 - overlap) // (MOST - overlap)) * (MOST - overlap)
        seen = PaddedSequences.pad([tokens[start:place]])
        found.append(float(MODEL(LanguageBatch(seen, seen.tokens, (0,)))[0, -1].log_softmax(-1)[tokens[place]]))
    return found


@pytest.mark.parametrize("overlap", [0, 1, 12, 23])
def test_scores_are_sums_over_tokens(overlap: int) -> None:
    texts = ["", "abc", "abcdefgh" * 9, "h" * 23, "a b.", "gfedcba" * 5]
    scores = GENERATOR.score(texts, overlap, batch_tokens=50)
    for text, score in zip(texts, scores, strict=True):
        assert score.log_p == pytest.approx(sum(log_p_of_tokens(text, overlap)), abs=1e-9)
        assert (score.n_tokens, score.n_bytes, score.n_dropped_tokens) == (len(text) + 1, len(text.encode()), 0)
    assert perplexity(scores) == pytest.approx(math.exp(-sum(s.log_p for s in scores) / sum(s.n_tokens for s in scores)))
    assert bits_per_byte(scores) == pytest.approx(-sum(s.log_p for s in scores) / math.log(2) / sum(len(text) for text in texts))


@pytest.mark.parametrize("overlap", [0, 5])
def test_parts_of_a_text_have_the_parts_before_as_context(overlap: int) -> None:
    texts = [["abc. ", "", "de" * 15, "f"], ["gh"], ["", ""], ["żab", "c"]]
    told: list[tuple[int, int]] = []
    scores = score_parts(MODEL, TOKENIZER, texts, overlap, batch_tokens=50, notify=lambda done, all_: told.append((done, all_)))
    for parts, of_parts in zip(texts, scores, strict=True):
        tokens, start = log_p_of_tokens("".join(parts), overlap), 0
        for place, (part, score) in enumerate(zip(parts, of_parts, strict=True), 1):
            end = len(tokens) if place == len(parts) else start + len(part)
            assert score.log_p == pytest.approx(sum(tokens[start:end]), abs=1e-9)
            assert (score.n_tokens, score.n_bytes, score.n_unknown) == (end - start, len(part.encode()), part.count("ż"))
            start = end
    assert [of_parts[0].windows for of_parts in scores] == [2, 1, 1, 1] and told[-1] == (37 + 3 + 1 + 5, 46)
    with pytest.raises(DataError, match="here: expected at most 23 tokens per text, found 36 in text 1"):
        score_parts(MODEL, TOKENIZER, texts, name="here", too_long="refuse")


def test_what_is_not_read_is_counted() -> None:
    told: list[tuple[int, int]] = []
    (short, long) = GENERATOR.score(["abc", "abcdefgh" * 9], too_long="truncate", notify=lambda done, all_: told.append((done, all_)))
    assert told[-1] == (4 + MOST, 4 + MOST)
    assert (short.n_dropped_tokens, long.n_dropped_tokens) == (0, 73 - MOST)
    assert long.n_tokens == long.n_bytes == MOST
    (whole,) = GENERATOR.score(["abcdefgh" * 9])
    tokens = [EOS, *TOKENIZER.encode("abcdefgh" * 9)]
    text = PaddedSequences.pad([tokens[:MOST]])
    with torch.inference_mode():
        log_ps = MODEL(LanguageBatch(text, text.tokens, (0,)))[0].log_softmax(-1)
    assert long.log_p == pytest.approx(sum(float(row[token]) for row, token in zip(log_ps, tokens[1:], strict=False)))
    assert long.log_p > whole.log_p
    with pytest.raises(DataError, match=r"x: expected at most 23 tokens per text, found 72 in text 2"):
        GENERATOR.score(["abc", "abcdefgh" * 9], too_long="refuse", name="x")
    with pytest.raises(ConfigError, match="an overlap from 0 to 23"):
        GENERATOR.score(["abc"], 24)
    with pytest.raises(ConfigError, match="expected an overlap with too_long = 'window', found 2 with 'truncate'"):
        GENERATOR.score(["abc"], 2, too_long="truncate")


@pytest.mark.long
def test_a_stop_text_is_seen_across_windows_and_behind_the_prompt() -> None:
    (free,) = GENERATOR.continuations(["abcd"], max_new_tokens=60, min_new_tokens=59)[0]
    assert free.windows
    for place in range(14, 26):  # around the first window's end, behind 19 tokens
        stop = free.text[place : place + 6]
        (cut,) = GENERATOR.continuations(["abcd"], max_new_tokens=60, min_new_tokens=59, stop=[stop])[0]
        assert cut.text == free.text[: free.text.index(stop)] and cut.n_tokens == len(cut.text) + 6 and cut.finish_reason == "stop"


def test_only_what_cannot_change_is_sure() -> None:
    assert _settled_length("caf\N{REPLACEMENT CHARACTER}", ()) == 3
    assert _settled_length("one, t", ("two",)) == 5
    assert _settled_length("one, two", ("two", "wo")) == 5
    assert _settled_length("one", ()) == 3
