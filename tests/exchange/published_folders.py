"""Tiny folders like those of published models: weights, tokenizer and settings."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from tests.agreement import published_tokenizers
from tests.exchange.foreign_models import CASES

BERT_ROLES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ROBERTA_ROLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
GPT2_ROLES = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
N_UNUSED = 3
"""Rows of the embedding beyond those of the tokenizer, as published models have them."""


@dataclass(frozen=True)
class PublishedFolder:
    """A folder to import.

    Attributes:
        case: name of the model, as in ``foreign_models.CASES``.
        tokenizer: builds its tokenizer; None for models of images.
        roles: its special tokens.
        verbs: command lines that fit, with RUN in place of the run folder, and IMAGE in that of an image.
        recipe: packaged recipe that continues its training, with the options of the data.
    """

    case: str
    tokenizer: Callable[[], tokenizers.Tokenizer] | None
    roles: dict[str, str]
    verbs: tuple[tuple[str, ...], ...]
    recipe: tuple[str, ...] = ()

    def save(self, folder: Path) -> Path:
        """Write the folder."""
        (case,) = (each for each in CASES if each.name == self.case)
        if self.tokenizer is None:
            case.save(folder)
            processor = transformers.ViTImageProcessor(
                size={"height": 16, "width": 16}, image_mean=[0.4] * 3, image_std=[0.2] * 3, resample=3
            )
            processor.save_pretrained(folder)
            return folder
        tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=self.tokenizer(), **self.roles)
        ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in self.roles if name in ("pad_token", "bos_token", "eos_token")}
        if case.architecture.endswith("ConditionalGeneration"):
            ids["decoder_start_token_id"] = tokenizer.pad_token_id
        replace(case, options={**case.options, "vocab_size": len(tokenizer) + N_UNUSED, **ids}).save(folder)
        tokenizer.save_pretrained(folder)
        return folder


EXPLAIN = ("explain", "RUN", "the cat sat", "--block", "0", "--head", "1", "--query", "1", "--format", "text")
TEXT_VERBS = (("names", "RUN"), EXPLAIN, ("doctor", "RUN"), ("trace", "RUN", "the cat sat", "--names", "weights"))
LANGUAGE = (
    ("generate", "RUN", "the cat", "--max-new-tokens", "5"),
    ("score", "RUN", "the cat sat"),
    ("plot", "heads", "RUN", "the cat sat", "--out", "heads.svg"),
    *TEXT_VERBS,
)
TRANSLATION = (("translate", "RUN", "the cat sat"), ("plot", "heads", "RUN", "the cat sat", "--out", "heads.svg"), *TEXT_VERBS)
CLASSES = (("classify", "RUN", "the cat sat"), ("embed", "RUN", "the cat sat"), *TEXT_VERBS)
IMAGES = (("classify", "RUN", "IMAGE"), ("names", "RUN"), ("plot", "heads", "RUN", "--input", "IMAGE", "--out", "heads.svg"))
CONTINUE = ("text-bpe", "--text", "TEXT")
FOLDERS = (
    PublishedFolder("gpt2", published_tokenizers.gpt2, GPT2_ROLES, LANGUAGE, CONTINUE),
    PublishedFolder("gpt_neox", published_tokenizers.gpt2, GPT2_ROLES, LANGUAGE, CONTINUE),
    PublishedFolder(
        "llama",
        published_tokenizers.llama3,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        LANGUAGE,
        CONTINUE,
    ),
    PublishedFolder(
        "mistral", published_tokenizers.llama2, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, LANGUAGE, CONTINUE
    ),
    PublishedFolder(
        "mixtral", published_tokenizers.llama2, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, LANGUAGE, CONTINUE
    ),
    PublishedFolder("qwen2", published_tokenizers.qwen, {"eos_token": "<|endoftext|>"}, LANGUAGE, CONTINUE),
    PublishedFolder("qwen3", published_tokenizers.qwen, {"eos_token": "<|endoftext|>"}, LANGUAGE, CONTINUE),
    PublishedFolder(
        "gemma2", published_tokenizers.llama2, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, LANGUAGE, CONTINUE
    ),
    PublishedFolder("phi", published_tokenizers.gpt2, GPT2_ROLES, LANGUAGE, CONTINUE),
    PublishedFolder(
        "bert-masked",
        published_tokenizers.bert,
        BERT_ROLES,
        (("fill", "RUN", "the [MASK] sat"), *TEXT_VERBS),
        ("text-masked", "--text", "TEXT"),
    ),
    PublishedFolder("bert-classes", published_tokenizers.bert, BERT_ROLES, CLASSES),
    PublishedFolder("bert-vectors", published_tokenizers.bert, BERT_ROLES, (("embed", "RUN", "the cat sat"), ("names", "RUN"))),
    PublishedFolder("roberta-masked", published_tokenizers.roberta, ROBERTA_ROLES, (("fill", "RUN", "the [MASK] sat"), *TEXT_VERBS)),
    PublishedFolder("roberta-classes", published_tokenizers.roberta, ROBERTA_ROLES, CLASSES),
    PublishedFolder("distilbert-masked", published_tokenizers.bert, BERT_ROLES, (("fill", "RUN", "the [MASK] sat"), *TEXT_VERBS)),
    PublishedFolder("distilbert-classes", published_tokenizers.bert, BERT_ROLES, CLASSES),
    PublishedFolder("vit", None, {}, IMAGES),
    PublishedFolder("deit", None, {}, IMAGES),
    PublishedFolder("deit-distilled", None, {}, IMAGES),
    PublishedFolder(
        "bart", published_tokenizers.roberta, ROBERTA_ROLES, TRANSLATION, ("translation", "--source", "TEXT", "--target", "TEXT")
    ),
    PublishedFolder(
        "t5",
        published_tokenizers.t5,
        {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
        TRANSLATION,
        ("translation", "--source", "TEXT", "--target", "TEXT"),
    ),
)
"""Every family but Marian, whose folder has two SentencePiece models."""
SENTENCEPIECE = Path(__file__).parent / "sentencepiece"


def save_marian(folder: Path) -> dict[str, Any]:
    """Write a folder of a Marian model; return its table of ids, and ids and texts of both sides by the library's own tokenizer."""
    (case,) = (each for each in CASES if each.name == "marian")
    expected: dict[str, Any] = json.loads((SENTENCEPIECE / "marian.json").read_text(encoding="utf-8"))
    vocab = expected["vocab"]
    ids = {"pad_token_id": vocab["<pad>"], "eos_token_id": vocab["</s>"], "decoder_start_token_id": vocab["<pad>"], "bos_token_id": None}
    replace(case, options={**case.options, "vocab_size": len(vocab), **ids}).save(folder)
    (folder / "vocab.json").write_text(json.dumps(vocab))
    for side, model in (("source", "unigram"), ("target", "t5")):
        shutil.copy(SENTENCEPIECE / f"{model}.model", folder / f"{side}.spm")
    return expected
