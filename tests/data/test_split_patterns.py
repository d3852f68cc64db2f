"""Regular expressions of published tokenizers are accepted; those that could take exponential or cubic time are not."""

import time

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from tests.agreement.published_tokenizers import LLAMA3_PATTERN, QWEN_PATTERN
from transom.data.tokenizer.split_patterns import check_pattern

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM, CLIP = r" ?[^(\s|[.,!?…。，、।۔،])]+", r"<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
PUBLISHED = [
    GPT2,
    LLAMA3_PATTERN,
    QWEN_PATTERN,
    O200K,
    DEEPSEEK,
    BLOOM,
    CLIP,
    r" {2,}",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\s?\p{P}+",
    r"[0-9][0-9][0-9]",
]

EXPLOSIVE = {
    r"(a+)+b": "a repeated group",
    r"(?:a|a)*b": "a repeated group",
    r"(?:a*){2,9}b": "a repeated group",
    r"a**": "a quantifier of a quantifier",
    r"a{1,3}+b": "a quantifier of a quantifier",
    r"a*a*b": "continues after 2 unbounded quantifiers",
    r"a*a*+b": "continues after 2 unbounded quantifiers",
    r"a*(?:a*+b)?c": "continues after 2 unbounded quantifiers",
    r"a*a*a*": "continues after 2 unbounded quantifiers",
    r"a*(?:a*b)": "continues after 2 unbounded quantifiers",
    r"(?:a*a*)(?!a)": "continues after 2 unbounded quantifiers",
    r"(?:xa*a*b)?": "continues after 2 unbounded quantifiers",
    "a?" * 30 + "a" * 30: "more than 65,536 comparisons at one position",
    "(a|a)" * 30 + "b": "more than 65,536 comparisons at one position",
    "a?" * 9 + "a" * 200: "more than 65,536 comparisons at one position",
    "(?>" + "a?" * 14 + "aaaaa)": "more than 65,536 comparisons at one position",
    r"a{1,500}": "more than 256 repetitions",
    r"(a)\1": "is not supported",
    r"(?<n>a)\g<n>": "a special group",
    r"(?~a)": "a special group",
    r"\X*": "is not supported",
    r"[a": "an open class",
    r"(a": "an open group",
    r"a)": "unbalanced brackets",
    r"a{}": "without numbers",
    "(" * 34 + "a" + ")" * 34: "more than 32 nested groups",
    "[" * 6 + "a" + "]" * 6: "more than 4 nested classes",
    "a" * 32_769: "of 32,769 characters",
}


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_patterns_are_accepted(pattern: str) -> None:
    check_pattern(pattern)
    pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str("It's 12 o'clock  …\n")  # the engine knows it, too


@pytest.mark.parametrize(("pattern", "reason"), EXPLOSIVE.items(), ids=str)
def test_explosive_patterns_are_refused(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^(the|a) regular expression .*{reason}"):
        check_pattern(pattern)


FAST = [r"a*a+(?:b)?", r"a*b", r"a?a?a?a?a?a?a?a?b", "(?>(?:a|aa|aaa)?)" * 9 + "b", "(?>a*)a*", r"aa*+a*+b(?!a*b)"]


@pytest.mark.parametrize("pattern", [*PUBLISHED, *FAST])
def test_accepted_patterns_are_fast_on_their_worst_texts(pattern: str) -> None:
    check_pattern(pattern)
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for text in ("a", " ", "\n", "1", "!", "aA", "\u4e00", " \n", "!\r"):
        start = time.process_time()
        split.pre_tokenize_str(text * 3_000)
        assert time.process_time() - start < 2, repr(text)


WIDTHS = {r"a+b": 2, r"a|bc": 1, r"[ab]{3,5}": 3, r"(?>ab|c)(d)": 2, r"\A\^": 1, r"\p{L}+(?!a)": 1}
EMPTY = (r"a*", r"(?=a)", r"^", r"$", r"\b", r"\Ba?", r"(?:)", r"a|", r"(a|bc)?", r"(?<!a)", r"b\K", r"\z", r"a{0,3}")


@pytest.mark.parametrize(("pattern", "width"), [*WIDTHS.items(), *((pattern, 0) for pattern in EMPTY)])
def test_the_least_number_of_characters(pattern: str, width: int) -> None:
    assert check_pattern(pattern) == width
    if not width:  # it matches between characters, too
        normalizer = normalizers.Replace(Regex(pattern), "x")
        assert any("x" in normalizer.normalize_str(text) and len(normalizer.normalize_str(text)) > len(text) for text in ("ab", "c", "- "))
