"""Make the fixtures in ``tests/exchange/sentencepiece``: tiny models and the ids that SentencePiece and transformers give to random texts.

Run it in an environment of its own: ``pip install sentencepiece==0.2.3 transformers==5.23.0`` and then
``python tests/exchange/make_sentencepiece_fixtures.py tests/exchange/sentencepiece``.
"""

import json
import random
import shutil
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer

WORDS = [
    "der",
    "die",
    "Wasser",
    "straße",
    "house",
    "houses",
    "tree",
    "trees",
    "running",
    "run",
    "1984",
    "über",
    "café",
    "naïve",
    "日本",
    "語",
    "漢字",
    "мир",
    "привет",
    "can't",
    "e-mail",
    "ελλάς",
]
WORDS += ["سلام", "a_b", "aaa", "==", "...", "<b>", "don't", "Don\u2019t", "<sep>", "na\u00efve", "x\u00b2", "\ufb01nal"]
PLAIN_WORDS = ["der", "die", "Wasser", "straße", "house", "houses", "tree", "running", "1984", "über", "café", "日本", "мир", "can't", "qx"]
CHARACTERS = [*"abcdehilnorstuvxyzABSW 0123456789.,!?-'_=<>/\t\n   äéßΩ", "e\u0301", "o\u0308", "\ufb01", "²", "▁", "日", "мир"]
PIECES = ["<sep>", "<cls>", "===", "▁▁", "  ", "   ", "\n\n", "<0x41>", "<start>", "<end>", "...", "--", "\r\n"]
MARKS = [chr(code) for code in range(0x300, 0x340)]
RULES = [
    ("e\u0301", "\u00e9"),
    ("i\u0308", "\u00ef"),
    ("o\u0308", "\u00f6"),
    ("A\u030a", "\u00c5"),
    ("\uff21\u030a", "\u00c5"),
    ("\u212b", "\u00c5"),
    ("\uff21", "A"),
    ("\ufb01", "fi"),
    ("\ufb03", "ffi"),
    ("\u00b2", "2"),
    ("\u2019", "'"),
    ("\u2126", "\u03a9"),
    ("--", "\u2014"),
    ("...", "\u2026"),
    ("\x01", ""),
    *((space, " ") for space in "\t\n\r\u00a0\u3000"),
]
UNIGRAM = {"model_type": "unigram", "vocab_size": 200, "normalization_rule_name": "identity"}
BPE = {**UNIGRAM, "model_type": "bpe", "vocab_size": 600, "byte_fallback": True, "character_coverage": 0.98}
KEPT = {"remove_extra_whitespaces": False}
MODELS = {
    "unigram": UNIGRAM,
    "rules": {"model_type": "unigram", "vocab_size": 220, "user_defined_symbols": ["<sep>", "<cls>", "==="], "pad_id": 3},
    "bytes": {**UNIGRAM, "vocab_size": 480, "byte_fallback": True, "character_coverage": 0.98},
    "spaces": {**UNIGRAM, **KEPT, "add_dummy_prefix": False},
    "t5": {"model_type": "unigram", "vocab_size": 200, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "bpe": {"model_type": "bpe", "vocab_size": 300},
    "llama": {**BPE, **KEPT, "split_digits": True, "allow_whitespace_only_pieces": True},
    "gemma": {
        **BPE,
        **KEPT,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
        "add_dummy_prefix": False,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "user_defined_symbols": ["<start>", "<end>", "▁▁", "▁▁▁", "▁▁▁▁", "\n", "\n\n"],
    },
    "user": {**BPE, "user_defined_symbols": ["<sep>", "==="]},
    "nfkc": {"model_type": "unigram", "vocab_size": 200},
}
"""Options of each model; those without a named normalization have ``RULES``, and ``nfkc`` has ``composition_rules``."""

N_TEXTS = 300


def composition_rules() -> list[tuple[str, str]]:
    """Return rules of NFKC for some blocks: compatible characters, and compositions of letters, kana and Hangul with what is compatible."""
    blocks = ((0xA0, 0x250), (0x1E00, 0x1F00), (0x3040, 0x3100), (0x2070, 0x2090), (0xAC00, 0xAC60), (0xFB00, 0xFB07), (0xFF21, 0xFF5B))
    wide = {chr(code - 0xFEE0): chr(code) for code in range(0xFF21, 0xFF5B)}
    rules = {}
    for character in (chr(code) for start, end in blocks for code in range(start, end)):
        composed, parts = unicodedata.normalize("NFKC", character), unicodedata.normalize("NFKD", character)
        if composed != character:
            rules[character] = composed
        if len(parts) > 1 and len(composed) == 1:
            rules[parts] = composed
            if parts[0] in wide:
                rules[wide[parts[0]] + parts[1:]] = composed
            if len(parts) == 3 and len(half := unicodedata.normalize("NFC", parts[:2])) == 1:
                rules[half + parts[2]] = composed
    return sorted(rule for rule in {**rules, "\n": " ", "\t": " ", "\x02": ""}.items() if rule[0] != rule[1])


def random_texts(rules: list[tuple[str, str]] | None = None) -> list[str]:
    """Return random texts of words, characters, combining marks, symbols of the models and any characters.

    Args:
        rules: character rules, whose strings occur in the texts too.
    """
    draw = random.Random(5)
    any_character = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000 and code not in (0xFDD0, 0xFDD1)]
    keys = [key for key, _ in rules or []]
    pools = [[WORDS, [" "]], [CHARACTERS], [CHARACTERS, MARKS], [any_character], [PIECES, CHARACTERS, WORDS, [" "]]]
    if keys:
        pools += [[keys], [keys, MARKS], [keys, MARKS, CHARACTERS]]
    texts = []
    for _ in range(N_TEXTS):
        pool = draw.choice(pools)
        texts.append("".join(draw.choice(draw.choice(pool)) for _ in range(draw.randint(0, 16))) + draw.choice(["", "", " ", "\n"]))
    return texts


def train(folder: Path, out: Path) -> None:
    """Train the models and write them with the ids of the texts."""
    draw = random.Random(2)
    lines = [" ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 12))) + draw.choice([".", "!", "?", ""]) for _ in range(2000)]
    (folder / "text").write_text("\n".join(lines), encoding="utf-8")
    for name, options in MODELS.items():
        rules = composition_rules() if name == "nfkc" else RULES
        texts = random_texts(rules if name == "nfkc" else None)
        numbers = [tuple(" ".join(f"{ord(character):X}" for character in side) for side in rule) for rule in rules]
        (folder / "rules.tsv").write_text("".join(f"{left}\t{right}\n" for left, right in numbers))
        normalization = {} if "normalization_rule_name" in options else {"normalization_rule_tsv": str(folder / "rules.tsv")}
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(folder / name),
            hard_vocab_limit=False,
            minloglevel=2,
            **normalization,
            **options,
        )
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))
        expected = [[text, ids, processor.decode(ids)] for text in texts for ids in [processor.encode(text)]]
        write_json(out / f"{name}.json", expected)
        shutil.copy(folder / f"{name}.model", out / f"{name}.model")


def marian_folder(folder: Path, models: Path) -> Path:
    """Write a folder of a Marian model whose table of ids lacks some pieces."""
    pieces: dict[str, None] = {}
    for name in ("unigram", "t5"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(models / f"{name}.model"))
        pieces |= dict.fromkeys(map(processor.id_to_piece, range(len(processor))))
    own = [piece for piece in pieces if piece not in ("<unk>", "<s>", "</s>", "<pad>")]
    random.Random(3).shuffle(own)
    vocab = {token: number for number, token in enumerate(["</s>", "<unk>", ">>de<<", *own[:-20], "<pad>"])}
    return transformers_folder(
        folder,
        {"source.spm": models / "unigram.model", "target.spm": models / "t5.model"},
        {"vocab.json": vocab, "config.json": {"model_type": "marian"}},
    )


def transformers_folder(folder: Path, copies: dict[str, Path], objects: dict[str, object]) -> Path:
    """Write a folder of copied files and JSON files."""
    folder.mkdir()
    for name, source in copies.items():
        shutil.copy(source, folder / name)
    for name, value in objects.items():
        write_json(folder / name, value)
    return folder


def compare(folder: Path, out: Path) -> None:
    """Write the ids of the transformers library for a Marian folder, and for words in the folders of the other classes."""
    marian = AutoTokenizer.from_pretrained(marian_folder(folder / "marian", out))
    texts = [*random_texts(), ">>de<< house", ">>fr<< house", "house >>de<<"]
    sides = {
        "source": [[text, ids, marian.decode(ids, skip_special_tokens=True)] for text in texts for ids in [marian(text)["input_ids"]]],
        "target": [
            [text, ids, marian.decode(ids, skip_special_tokens=True)] for text in texts for ids in [marian(text_target=text)["input_ids"]]
        ],
    }
    write_json(out / "marian.json", {"vocab": marian.encoder, **sides})
    draw = random.Random(4)
    words = [" ".join(draw.choice(PLAIN_WORDS) for _ in range(draw.randint(1, 8))) for _ in range(60)]
    found = {}
    for name, (file, model, kind, config) in FOLDERS.items():
        objects = {"config.json": {"model_type": kind}, "tokenizer_config.json": config}
        path = transformers_folder(folder / name, {file: out / f"{model}.model"}, objects)
        tokenizer = AutoTokenizer.from_pretrained(path)
        found[name] = {
            "file": file,
            "model": model,
            **objects,
            "n": len(tokenizer),
            "texts": [[text, tokenizer(text)["input_ids"]] for text in words],
        }
    write_json(out / "folders.json", found)


FOLDERS: dict[str, tuple[str, str, str, dict[str, object]]] = {
    "t5": ("spiece.model", "t5", "t5", {"extra_ids": 10}),
    "llama": ("tokenizer.model", "llama", "llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}),
    "xlm": ("sentencepiece.bpe.model", "unigram", "xlm-roberta", {}),
    "gemma": (
        "tokenizer.model",
        "gemma",
        "gemma2",
        {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "mask_token": None},
    ),
}
"""File, model, ``model_type`` and ``tokenizer_config.json`` of each folder."""


def write_json(path: Path, value: object) -> None:
    """Write JSON in one line."""
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        train(Path(made), Path(sys.argv[1]))
        compare(Path(made), Path(sys.argv[1]))
