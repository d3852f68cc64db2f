"""Tiny tokenizers of the ``tokenizers`` library, built like those of published models."""

import json
import random
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library

LLAMA3_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

_TEXT = (
    "The cat sat on the mats near Crème brûlée shops; it's raining, they'll swim in 12345 lakes. Über naïve façade 東京 は 晴れ です"
    " привет мир the then there these lower lowest newer newest wider it isn't we're 'm \U0001f600\U0001f680 x=y+z; def f(a): return a[0]"
)
_WORDS = _TEXT.split()


def corpus(n: int = 400) -> list[str]:
    """Return lines of random words."""
    draw = random.Random(1)
    return [" ".join(draw.choices(_WORDS, k=draw.randint(3, 12))) for _ in range(n)]


def random_strings(n: int, seed: int = 0) -> list[str]:
    """Return random Unicode strings: words, spaces, controls, accents, emoji, unassigned and private characters."""
    draw, found = random.Random(seed), list[str]()
    ranges = [(32, 127), (0, 32), (0xA0, 0x250), (0x300, 0x370), (0x400, 0x500), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0x2000, 0x2100)]
    ranges += [(0x1F300, 0x1F700), (0xE000, 0xE100), (0xFB00, 0xFB50), (0xFFF0, 0x10000), (0xD800 - 64, 0xD800), (0x10FF00, 0x110000)]
    for _ in range(n):
        text = ""
        for _ in range(draw.randint(0, 12)):
            if draw.random() < 0.4:
                text += draw.choice(["", " ", "  ", "\n", "\t"]) + draw.choice(_WORDS)
            else:
                first, end = draw.choice(ranges)
                text += "".join(chr(draw.randrange(first, end)) for _ in range(draw.randint(1, 4)))
        found.append(text)
    return found


def _bytes(model: models.Model, split: Any, n: int = 600) -> Library:
    library = Library(model)
    library.pre_tokenizer, library.decoder = split, decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=n, initial_alphabet=alphabet, show_progress=False))
    return library


def gpt2() -> Library:
    library = _bytes(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False))
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    library.add_special_tokens(["<|endoftext|>"])
    return library


def roberta() -> Library:
    library = Library(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, special_tokens=names, show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    library.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    return library


def _split_bytes(pattern: str) -> Any:
    first = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3() -> Library:
    library = _bytes(models.BPE(ignore_merges=True), _split_bytes(LLAMA3_PATTERN))
    library.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|eot_id|>"])
    first = ("<|begin_of_text|>", library.token_to_id("<|begin_of_text|>"))
    added = processors.TemplateProcessing(single=f"{first[0]} $A", pair=f"{first[0]} $A {first[0]}:1 $B:1", special_tokens=[first])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), added])
    return library


def qwen() -> Library:
    library = _bytes(models.BPE(), _split_bytes(QWEN_PATTERN))
    library.normalizer = normalizers.NFC()
    library.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    library.add_tokens([AddedToken("<tool_call>", normalized=False)])
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library


def bert() -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=300, special_tokens=names, show_progress=False))
    library.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return library


def t5() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), "\u2581")])
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=250, special_tokens=names, unk_token="<unk>", show_progress=False)
    library.train_from_iterator(corpus(), trainer)
    library.add_special_tokens([f"<extra_id_{n}>" for n in range(3)])
    library.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return library


def llama2() -> Library:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    library = Library(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=names, limit_alphabet=80, show_progress=False)
    library.train_from_iterator([word for line in corpus() for word in line.split()], trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = state["added_tokens"][:3]
    library = Library.from_str(json.dumps(state))
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    library.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return library


BUILDERS: dict[str, Callable[[], Library]] = {each.__name__: each for each in (gpt2, roberta, llama3, qwen, bert, t5, llama2)}
