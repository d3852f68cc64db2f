"""Import a model folder of the transformers library into a new run folder: weights, tokenizer and settings."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transom.checkpoints.run_files import CARD, FILES, TOKENIZER, contains_run
from transom.checkpoints.run_folder import RunFolder
from transom.errors import ConfigError
from transom.exchange.config_rows import Fields
from transom.exchange.family import TASKS, Family, find_family
from transom.exchange.foreign_folder import GENERATION_FILE, PREPROCESSOR_FILE, TOKENIZER_CONFIG_FILE, ForeignFolder
from transom.exchange.generation import DecodingSettings, read_beam_search, read_sampling
from transom.exchange.import_model import ImportedModel, new_run_id, open_foreign_model, write_weights
from transom.exchange.imported import Imported
from transom.exchange.sentence_transformers import read_pooling
from transom.exchange.side_files import read_classes, read_normalization
from transom.exchange.tokenizer.tokenizer_exchange import load_folder_tokenizers
from transom.files.atomic_io import remove

Notify = Callable[[int, int], None]
"""Called with the number of bytes done and their total."""

KEPT_FILES = (GENERATION_FILE, PREPROCESSOR_FILE, TOKENIZER_CONFIG_FILE)
"""JSON files of the foreign folder that ``imported.json`` keeps for an export."""


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        folder: the new run folder.
        model_type: foreign family.
        architecture: foreign class of the model.
        task: our task.
        n_parameters: number of parameters.
        dtypes: dtypes of the stored weights.
        n_bytes: bytes of the written weights.
        seconds: duration.
        notes: lines on what has no equal and was not carried over.
    """

    folder: str
    model_type: str
    architecture: str
    task: str
    n_parameters: int
    dtypes: list[str]
    n_bytes: int
    seconds: float
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-serializable data."""
        return asdict(self)


def import_folder(source: Path, out: Path, notify: Notify = lambda done, total: None) -> ImportReport:
    """Import a model. The source folder is only read, and nothing in it is executed.

    Args:
        source: folder with ``config.json``, safetensors files and a tokenizer.
        out: the new run folder.
        notify: called with the number of bytes of weights written and their total.

    Raises:
        CheckpointError: a file is missing, damaged or too large, or the model is one that transom cannot express.
        ConfigError: ``out`` holds a run or other files.
        DiskError: the disk is full, or the folder cannot be written.
    """
    start = time.perf_counter()
    if contains_run(out):
        raise ConfigError(f"{out}: expected a new folder, found a run; give another OUT")
    folder = ForeignFolder(source)
    family = find_family(folder.config)
    tokenizers = load_folder_tokenizers(folder) if family.reads_text else None
    from_data, notes = _from_files(folder, family, tokenizers)
    model = open_foreign_model(folder, from_data)
    decoding = _decoding(family, folder.read_json(GENERATION_FILE) or folder.config)
    with new_run(out) as run:
        run.write_config(model.config, new_run_id())
        if tokenizers is not None:
            run.write(TOKENIZER, tokenizers.to_bytes())
        files = {name: value for name in KEPT_FILES if (value := folder.read_json(name)) is not None}
        imported = Imported(
            model_type=family.model_type,
            architecture=family.architecture,
            task=TASKS[family.kind],
            decoding=decoding.fields,
            files=files,
        )
        imported.write(run)
        n_bytes = write_weights(model, run, notify)
        notes += [*model.notes, *decoding.notes]
        report = ImportReport(
            str(out),
            family.model_type,
            family.architecture,
            imported.task,
            model.n_parameters,
            sorted({str(tensor.spec.dtype).removeprefix("torch.") for tensor in folder.tensors.values()}),
            n_bytes,
            time.perf_counter() - start,
            notes,
        )
        run.write(CARD, _card(report, source, model).encode())
    return report


@contextmanager
def new_run(out: Path) -> Iterator[RunFolder]:
    """Create a run folder; remove its files if an error occurs."""
    with RunFolder.create(out) as run:
        try:
            yield run
        except BaseException:
            for name in FILES:
                if (out / name).exists():
                    remove(out / name)
            raise


def _from_files(folder: ForeignFolder, family: Family, tokenizers: Any) -> tuple[Fields, list[str]]:
    """Return our fields that class names, tokenizer and image processor determine, and lines on what is not carried over."""
    found: Fields = {}
    notes: list[str] = []
    if family.kind in ("text-classifier", "vision-transformer"):
        n_logits = next((t.spec.shape[0] for name, t in folder.tensors.items() if family.is_output(name)), 2)
        found |= read_classes(folder.config, n_logits)
    if family.kind == "vision-transformer":
        size, channels = (folder.config.get(name, default) for name, default in (("image_size", 224), ("num_channels", 3)))
        normalization, notes = read_normalization(folder.read_json(PREPROCESSOR_FILE), size, channels)
        found |= normalization
    if family.kind == "text-embedder":
        pooling, notes = read_pooling(folder)
        found |= pooling
    if tokenizers is not None:
        special = tokenizers.source.special_tokens
        found["pad_token_id"] = special.pad_token_id
        if family.kind in ("encoder", "text-classifier", "text-embedder"):
            found["mask_token_id"] = special.padding if special.mask_token_id is None else special.mask_token_id
    return found, notes


def _decoding(family: Family, generation: Mapping[str, Any]) -> DecodingSettings:
    if family.kind == "decoder":
        return read_sampling(generation)
    return read_beam_search(generation) if family.kind == "seq2seq" else DecodingSettings({}, [])


def _card(report: ImportReport, source: Path, model: ImportedModel) -> str:
    """Return the model card."""
    lines = [
        f"# {source.resolve().name}",
        "",
        f"A {report.architecture} of the transformers library, imported by transom: {report.n_parameters:,} parameters,"
        f" {model.config.described_layers}.",
        *(f"- {note}" for note in report.notes),
    ]
    return "\n".join(lines) + "\n"
