"""Tokenizers of the tokenizers library against the transformers library, which reads the same JSON."""

import pytest
from tokenizers import Tokenizer as Library
from transformers import PreTrainedTokenizerFast

from tests.agreement.published_tokenizers import BUILDERS, random_strings
from tests.tiers import every
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers


def _check(name: str, strings: list[str]) -> None:
    """Compare token ids with the tokens around a text, texts of token ids, and pairs of texts."""
    state = BUILDERS[name]().to_str()
    own, theirs = Tokenizer.from_library(state), PreTrainedTokenizerFast(tokenizer_object=Library.from_str(state))
    ids, template = theirs(strings)["input_ids"], own.special_tokens.template
    assert [template.surround(row) for row in own.encode_batch(strings)] == ids
    decoded = theirs.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert [own.decode(row) for row in ids] == decoded
    pairs = list(zip(strings[:50], strings[50:100], strict=True))
    both = theirs(*map(list, zip(*pairs, strict=True)), return_token_type_ids=True)
    found = [template.surround_pair(own.encode(first), own.encode(second)) for first, second in pairs]
    assert [row for row, _ in found] == both["input_ids"]
    if name == "bert":
        assert [types for _, types in found] == both["token_type_ids"]


@pytest.mark.parametrize("name", every(3, BUILDERS, long=1))
def test_ids_and_texts_are_those_of_the_transformers_library(name: str) -> None:
    _check(name, random_strings(400, seed=1))


@pytest.mark.soak
@pytest.mark.parametrize("name", BUILDERS)
def test_ids_and_texts_of_10_000_strings_are_those_of_the_transformers_library(name: str) -> None:
    _check(name, random_strings(10_000))


def test_special_tokens_in_texts_are_encoded_only_where_asked() -> None:
    for name, content in (("gpt2", "<|endoftext|>"), ("bert", "[SEP]"), ("t5", "</s>"), ("llama2", "</s>"), ("llama3", "<|eot_id|>")):
        state = BUILDERS[name]().to_str()
        own, text = Tokenizer.from_library(state), f"the cat {content} sat"
        theirs = PreTrainedTokenizerFast(tokenizer_object=Library.from_str(state))
        token = theirs.convert_tokens_to_ids(content)
        assert token not in own.encode(text) and own.is_special(token)
        assert own.encode_with_special_tokens(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert token in own.encode_with_special_tokens(text)


def test_special_tokens_are_found_or_given() -> None:
    roles = {name: Tokenizer.from_library(build().to_str()).special_tokens for name, build in BUILDERS.items()}
    gpt2, t5, bert, llama = (roles[name] for name in ("gpt2", "t5", "bert", "llama2"))
    assert gpt2.pad_token_id is None and gpt2.bos_token_id == gpt2.eos_token_id == gpt2.padding == gpt2.document_start == gpt2.end
    assert gpt2.prompt([7]) == [7] and gpt2.prompt([]) == [gpt2.end] and gpt2.document([7]) == [gpt2.end, 7] and not gpt2.never_in_target
    assert (t5.bos_token_id, t5.decoder_start, t5.end, t5.never_in_target) == (None, 0, 1, [0]) and t5.seq2seq.surround([7]) == [7, 1]
    assert bert.document([7]) == bert.text([7]) == [2, 7, 3] and bert.padding == 0 and bert.mask_token_id == 4
    assert llama.prompt([7]) == [1, 7] and llama.document([7]) == [1, 7, 2] and llama.seq2seq.suffix == (2,)
    state = BUILDERS["qwen"]().to_str()
    given = Tokenizer.from_library(state, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}, vocab_size=640)
    special, ids = given.special_tokens, Library.from_str(state).get_vocab()
    assert (special.end, special.padding, special.bos_token_id) == (ids["<|im_end|>"], ids["<|endoftext|>"], None)
    assert given.vocab_size == 640 and given.symbols([639]) == ["<unused639>"] and given.decode([639]) == ""
    assert set(given.never_generated) >= {*range(max(ids.values()) + 1, 640), ids["<|endoftext|>"]} and 639 not in given.maskable


@pytest.mark.parametrize("name", every(3, BUILDERS, long=1))
def test_a_stored_tokenizer_is_the_same(name: str) -> None:
    own = Tokenizer.from_library(BUILDERS[name]().to_str(), vocab_size=700)
    content = Tokenizers(own).to_bytes()
    read, strings = Tokenizers.from_bytes(content), random_strings(50, seed=2)
    back = read.source
    assert back.encode_batch(strings) == own.encode_batch(strings) and back.special_tokens == own.special_tokens
    assert (back.vocab_size, back.kind, back.lowercase, back.maskable) == (700, "pretrained", name == "bert", own.maskable)
    assert read.to_bytes() == content
