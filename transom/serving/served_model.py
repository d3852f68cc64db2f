"""A model that a page shows: its description, its inputs, and sample inputs."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from transom.checkpoints.run_files import CHECKPOINTS, METRICS
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.special_tokens import MASK
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.long_texts import check_length
from transom.decoding.predictors.translator import Translator
from transom.errors import DataError, UnreadableFileError
from transom.files.message import phrase, replaced
from transom.inspection.edits.answers import ask, class_question
from transom.inspection.example_batch import SupportsFileInput, build_example_batch
from transom.inspection.lenses.question import lens_question
from transom.inspection.lenses.readout import output_symbols
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.serving.requests import MAX_TEXT, InputRequest
from transom.tasks.audio.task import AudioClassifier, AudioTask
from transom.tasks.image_classification.task import THUMBNAIL_SIZE, ImageTask
from transom.tasks.input_profile import read_input_profile
from transom.tasks.load_checkpoint import load_run_or_checkpoint
from transom.tasks.run_data import load_sample

MAX_SAMPLES = 12
"""Sample inputs that are offered."""

SAMPLE_TEXTS = ("source", "prompt", "text", "words")
"""Fields of a validation sample that hold its input."""


class ModelInput(NamedTuple):
    """An input of a model.

    Attributes:
        batch: batch of one row.
        answer: the model's answer as text; empty for models without one, and for a language model, whose answer follows from the pass.
        positions: positions of the logits of the answer.
        notes: notes on the input.
    """

    batch: Any
    answer: str
    positions: Sequence[int]
    notes: Sequence[str]


class InputFile(NamedTuple):
    """A picture or sound that serves as input.

    Attributes:
        path: its file on the server.
        name: name of the uploaded file; empty for a sample.
        sample: name of the sample of the validation data; empty for an uploaded file.
    """

    path: Path
    name: str = ""
    sample: str = ""


@dataclass(frozen=True)
class ServedModel:
    """A loaded run or checkpoint.

    Attributes:
        folder: run folder or checkpoint.
        run: its predictor.
    """

    folder: Path
    run: Any

    @classmethod
    def load(cls, folder: Path) -> "ServedModel":
        """Load a run, or a checkpoint in it, in float32.

        Raises:
            CheckpointError: there is no intact run or checkpoint.
        """
        return cls(folder, load_run_or_checkpoint(folder, "fp32"))

    @property
    def network(self) -> Network:
        """The model of the run."""
        network: Network = self.run.model
        return network

    @property
    def input_kind(self) -> Literal["text", "pair", "image", "sound"]:
        """Kind of input that the model reads; a pair is a text and its translation."""
        if isinstance(self.run, SupportsFileInput):
            return "sound" if isinstance(self.run, AudioClassifier) else "image"
        return "pair" if isinstance(self.run, Translator) else "text"

    def describe(self) -> dict[str, Any]:
        """Return name, kind, sizes and stacks, as JSON-serializable data."""
        config = self.network.config
        names = ("d_model", "d_ff", "n_heads", "n_kv_heads", "max_seq_len", "vocab_size", "rotary_dim")
        sizes = {name: getattr(config, name, None) for name in names}
        return {
            "name": self.folder.resolve().name,
            "folder": str(self.folder),
            "kind": config.kind,
            "predictor": type(self.run).__name__,
            "input": self.input_kind,
            "masks": isinstance(self.run, MaskFiller),
            "n_parameters": sum(each.numel() for each in self.network.parameters()),
            **sizes,
            "position": getattr(getattr(config, "position", None), "kind", None),
            "softcap": getattr(getattr(config, "attention", None), "softcap", None),
            "stacks": self.describe_stacks(),
            "classes": list(getattr(config, "classes", ()) or ()) or None,
            "samples": self.samples(),
        }

    def describe_stacks(self) -> list[dict[str, Any]]:
        """Return name and number of blocks of each stack of Transformer blocks."""
        modules = self.network.named_children()
        return [{"name": name, "n_blocks": len(module.blocks)} for name, module in modules if isinstance(module, Stack)]

    def symbols(self) -> list[str]:
        """Return the symbol, class or tag of each logit."""
        named = output_symbols(self.run)
        n = unembedding.weight.shape[0] if (unembedding := getattr(self.network, "unembedding", None)) is not None else 0
        return [named(index) for index in range(n)]

    def samples(self) -> list[dict[str, Any]]:
        """Return the inputs of the samples that the run predicted at its last validation."""
        lines = []
        metrics = next((each / METRICS for each in (self.folder, *self.folder.parents[:2]) if (each / METRICS).is_file()), None)
        if metrics is not None:
            lines = [line for line in metrics.read_text(encoding="utf-8").splitlines() if '"samples"' in line]
        found = json.loads(lines[-1])["samples"] if lines else []
        return [each for sample in found[:MAX_SAMPLES] if (each := self._sample(sample)) is not None]

    def _sample(self, sample: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the input of a validation sample."""
        if isinstance(self.run, SupportsFileInput):
            picture = str(sample.get("picture", ""))
            if not picture.startswith("data:image/png;base64,"):
                return None
            return {"label": str(sample.get("class", "")), "thumbnail": picture, "sample": str(sample.get("text", ""))}
        text = next((str(sample[name]) for name in SAMPLE_TEXTS if sample.get(name)), None)
        if text is None:
            return None
        text = " ".join(text.split("\n")) if "words" in sample else text
        return {"label": text, "input": {"text": text}}

    def build_input(self, request: InputRequest, files: Mapping[str, InputFile]) -> ModelInput:
        """Build the batch of an input, without edits of the model.

        Args:
            request: the input.
            files: uploaded files and samples by identifier.

        Raises:
            DataError: the input is of the wrong kind, empty, or longer than the context window.
        """
        if isinstance(self.run, SupportsFileInput):
            if request.file is None or request.file not in files:
                raise DataError(phrase("errors.no_file", "input: expected an uploaded file for this model, found none; choose a file"))
            found = class_question(self.run, self.read_file(files[request.file]))
            return ModelInput(found.batch, found.answer, found.positions, [])
        if request.text is None:
            raise DataError(phrase("errors.no_text", "input: expected a text for this model, found a file; type a text"))
        if len(request.text) > MAX_TEXT or len(request.target or "") > MAX_TEXT:
            english = "text: expected at most {most} characters, found more; shorten the text"
            raise DataError(phrase("errors.characters", english, most=MAX_TEXT))
        if isinstance(self.run, Generator):  # its answer is the next token of the pass
            example = build_example_batch(self.run, request.text, None, "refuse")
            batch = self._with_separator(example.batch)
            return ModelInput(batch, "", (batch.decoder_input.tokens.shape[1] - 1,), [*example.notes, *self._warnings(request.text)])
        if isinstance(self.run, Translator) or hasattr(self.run, "classify"):
            found = ask(self.run, request.text, None, request.target if isinstance(self.run, Translator) else None)
        elif isinstance(self.run, MaskFiller) and MASK in request.text:
            found = lens_question(self.run, request.text)
        else:
            example = build_example_batch(self.run, request.text, None, "refuse")
            return ModelInput(example.batch, "", (), [*example.notes, *self._warnings(request.text)])
        return ModelInput(found.batch, found.answer, found.positions, [*found.notes, *self._warnings(request.text)])

    def read_file(self, file: InputFile) -> Any:
        """Return the batch of a picture or sound; a sample that is more than its thumbnail is read from the validation data.

        Raises:
            UnreadableFileError: the file cannot be decoded.
            TransomError: the validation data have moved.
        """
        is_thumbnail = self.input_kind == "image" and getattr(self.network.config, "image_size", 0) <= THUMBNAIL_SIZE
        if file.sample and not is_thumbnail:
            return load_sample(self._run_folder, file.sample).to(self.network.device)
        try:
            return build_example_batch(self.run, None, file.path).batch
        except UnreadableFileError as error:
            raise UnreadableFileError(replaced(error.line, str(file.path), file.name)) from None

    def read_reference(self, request: InputRequest, files: Mapping[str, InputFile]) -> Any:
        """Return the batch of another input, from which a patch takes its values; a translator translates its text itself.

        Raises:
            DataError: the input is of the wrong kind, empty, or longer than the context window.
        """
        if isinstance(self.run, SupportsFileInput) or request.text is None:
            return self.build_input(request, files).batch
        return build_example_batch(self.run, request.text, None, "refuse").batch

    def _warnings(self, text: str) -> list[str]:
        """Return how a text differs from the training texts of the run."""
        if self._profile is None:
            return []
        return self._profile.warnings(text.replace(MASK, ""))

    @cached_property
    def _profile(self) -> InputProfile | None:
        """Profile of the training texts; None for a run without one."""
        return read_input_profile(self._run_folder)

    @property
    def _run_folder(self) -> Path:
        """Folder of the run, to which a checkpoint belongs."""
        return self.folder.parents[1] if self.folder.parent.name == CHECKPOINTS else self.folder

    def _with_separator(self, batch: LanguageBatch) -> LanguageBatch:
        """Append the token that separates prompt and answer, for a model that answers instructions.

        Raises:
            DataError: the prompt fills the context window.
        """
        if not self.run.instruction_tuned:
            return batch
        row, longest = (
            [*batch.decoder_input.tokens[0].tolist(), self.run.tokenizer.special_tokens.answer_start],
            self.run.model.config.max_seq_len,
        )
        if len(row) > longest:
            check_length("text", len(row) - 2, longest - 2)
        read = PaddedSequences.pad([row])
        return LanguageBatch(read, read.tokens, (0,)).to(self.network.device)

    def picture(self, batch: Any) -> str | None:
        """Return the picture or spectrogram that a batch holds as the data URL of a PNG image; None for texts."""
        if not isinstance(self.network.config, ImageClassifierConfig):
            return None
        task = AudioTask if self.input_kind == "sound" else ImageTask
        pixels: Tensor = batch.pixels[0]
        return task.to_data_url((pixels * 255).round().byte().cpu())


def decode_upload(data: str) -> tuple[str, bytes]:
    """Return identifier and content of an uploaded file in base64.

    Raises:
        DataError: the data are not base64.
    """
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        line = phrase("errors.base64", "upload: expected a file in base64, found other characters; choose the file again")
        raise DataError(line) from None
    if not content:
        raise DataError(phrase("errors.empty_upload", "upload: expected a file with content, found an empty one; choose another file"))
    return hashlib.sha256(content).hexdigest()[:32], content
