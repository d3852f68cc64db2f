"""Export a run as a folder of the transformers library, and check it by running it before it gets its name."""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transom.checkpoints.run_files import CARD, RECIPE, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.config.architecture import ModelConfig
from transom.config.recipe import load_recipe
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.errors import ConfigError
from transom.exchange.check_export import Agreement, check_export, check_token_ids, import_transformers
from transom.exchange.config_rows import OWN_OUTPUT, Fields
from transom.exchange.export_model import choose_family, convert_model, write_foreign_weights
from transom.exchange.family import TASKS, Family
from transom.exchange.foreign_folder import CONFIG_FILE, GENERATION_FILE, PREPROCESSOR_FILE
from transom.exchange.generation import DecodingSettings, write_beam_search, write_sampling
from transom.exchange.imported import Imported
from transom.exchange.sentence_transformers import write_pooling
from transom.exchange.side_files import write_classes, write_preprocessor
from transom.exchange.tokenizer.tokenizer_exchange import load_run_tokenizers, pieces_without_id, tokenizer_files
from transom.exchange.tokenizer.tokenizer_files import first_token
from transom.files.atomic_io import convert_disk_errors, json_bytes, sync_folder, write_file
from transom.models.build import build_uninitialized

Notify = Callable[[int, int], None]
"""Called with the number of bytes done and their total."""


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        folder: the new folder.
        model_type: foreign family.
        architecture: foreign class of the model.
        auto_class: class of the library that loads the folder.
        pipeline: name of the library's pipeline; empty if there is none.
        agreement: agreement of the logits on random inputs.
        seconds: duration, the check included.
        notes: lines on what has no equal and was not carried over.
    """

    folder: str
    model_type: str
    architecture: str
    auto_class: str
    pipeline: str
    agreement: Agreement
    seconds: float
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-serializable data."""
        return asdict(self)


def export_run(run: Path, out: Path, model_type: str | None = None, notify: Notify = lambda done, total: None) -> ExportReport:
    """Export a run in the transformers library's format, as a model type that this library has, so that no code comes with the folder.

    The folder gets its name only after the library has loaded it and its logits equal those of the run.

    Args:
        run: the run folder.
        out: the new folder.
        model_type: foreign family; None for the one that equals the model and adds the fewest parameters.
        notify: called with the number of bytes of weights written and their total.

    Raises:
        CheckpointError: the run folder is damaged.
        ConfigError: no family equals the model; the message names the components in the way. Or ``out`` exists, or the library is missing.
        DiskError: the disk is full, or the folder cannot be written.
        TransomError: the check found a difference.
    """
    start = time.perf_counter()
    require_export(out)
    folder = RunFolder.open(run)
    config = folder.load_config()
    family = choose_family(config, model_type)
    model = build_uninitialized(config)
    folder.load_weights(model)
    tokenizers = load_run_tokenizers(folder) if family.reads_text else None
    imported = Imported.read(folder)
    decoding, task = _decoding(folder, family, imported, getattr(config, "max_seq_len", 512)), _task(folder, family, imported)
    foreign = convert_model(config, folder.read_weights(WEIGHTS), family)
    with new_folder(out) as partial:
        for name, content in json_files(family, config, foreign.config, tokenizers, imported, decoding).items():
            (partial / name).parent.mkdir(exist_ok=True)
            write_file(partial / name, json_bytes(content))
        if tokenizers is not None:
            for name, data in tokenizer_files(tokenizers, config, task, imported).items():
                write_file(partial / name, data)
        write_file(partial / CARD, _card(folder, family).encode())
        write_foreign_weights(foreign, partial, notify)
        agreement = check_export(model.eval(), partial, family)
        if tokenizers is not None:
            check_token_ids(tokenizers.source, task, partial)
    return ExportReport(
        str(out),
        family.model_type,
        family.architecture,
        family.auto_class,
        family.pipeline,
        agreement,
        time.perf_counter() - start,
        [*decoding.notes, *_tokenizer_notes(tokenizers)],
    )


def require_export(out: Path) -> None:
    """Raise an error if an export to a folder cannot begin.

    Raises:
        ConfigError: the transformers library is not installed, or ``out`` exists.
    """
    import_transformers()
    if out.exists():
        raise ConfigError(f"{out}: expected a new folder, found {'a folder' if out.is_dir() else 'a file'}; give another OUT")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create a folder beside ``out``, which is renamed to ``out`` at the end, or removed if an error occurs."""
    partial = out.with_name(f"{out.name}.partial-{secrets.token_hex(4)}")
    with convert_disk_errors(out):
        partial.mkdir(parents=True)
        try:
            yield partial
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    sync_folder(out.parent)


def _tokenizer_notes(tokenizers: Tokenizers | None) -> list[str]:
    """Return a line if a tokenizer has pieces that its model has no row for."""
    found = [] if tokenizers is None else pieces_without_id(tokenizers.source)
    if not found:
        return []
    return [f"{len(found):,} pieces without an id, such as {found[0]!r}, are left out: texts with them are unknown here, and split there"]


def _task(folder: RunFolder, family: Family, imported: Imported | None) -> str:
    """Return the task of a run."""
    if folder.has_recipe:
        return load_recipe(folder.path / RECIPE)[0].task
    return TASKS[family.kind] if imported is None else imported.task


def _decoding(folder: RunFolder, family: Family, imported: Imported | None, window: int) -> DecodingSettings:
    """Return the settings of generation within a context window: those of the recipe, or those that an imported model came with."""
    if family.kind not in ("decoder", "seq2seq"):
        return DecodingSettings({}, [])
    if imported is not None and GENERATION_FILE in imported.files:
        return DecodingSettings(imported.files[GENERATION_FILE], [])
    settings = load_recipe(folder.path / RECIPE)[0].decoding.model_dump(mode="json") if folder.has_recipe else {}
    return write_sampling(settings) if family.kind == "decoder" else write_beam_search(settings, window)


def json_files(
    family: Family,
    config: ModelConfig,
    foreign: Fields,
    tokenizers: Tokenizers | None,
    imported: Imported | None,
    decoding: DecodingSettings,
) -> dict[str, Any]:
    """Return the JSON files of the folder, except those of the tokenizer."""
    ours = config.model_dump(mode="json")
    ids = _token_ids(tokenizers, family)
    fields = {name: value for name, value in foreign.items() if name != OWN_OUTPUT} | ids | {"dtype": "float32"}
    fields |= write_classes(ours) if "classes" in config.FROM_DATA else {}
    files: dict[str, Any] = {CONFIG_FILE: fields}
    if family.kind in ("decoder", "seq2seq"):
        files[GENERATION_FILE] = ids | decoding.fields
    if family.kind == "vision-transformer":
        kept = imported.files.get(PREPROCESSOR_FILE) if imported is not None else None
        files[PREPROCESSOR_FILE] = kept or write_preprocessor(ours, "ViTImageProcessor")
    if family.kind == "text-embedder":
        files |= write_pooling(ours["pooling"], ours["d_model"], ours["max_seq_len"])
    return files


def _token_ids(tokenizers: Tokenizers | None, family: Family) -> Fields:
    """Return the ids of special tokens that the library reads from ``config.json``."""
    if tokenizers is None:
        return {}
    special = tokenizers.target.special_tokens
    end = special.eos_token_id if special.eos_token_id is not None else special.sep_token_id
    ids: Mapping[str, int | list[int | None] | None] = {
        "pad_token_id": special.padding,
        "bos_token_id": first_token(special, TASKS[family.kind]),
        "eos_token_id": [end, *special.other_end_token_ids] if special.other_end_token_ids else end,
    }
    if family.kind == "seq2seq":
        ids = {**ids, "decoder_start_token_id": special.decoder_start}
    return dict(ids)


def _card(folder: RunFolder, family: Family) -> str:
    """Return the model card: the run's own, after the front matter that the library's hub reads."""
    matter = ["library_name: transformers", f"pipeline_tag: {family.pipeline or 'translation'}"]
    own = (folder.path / CARD).read_text(encoding="utf-8") if (folder.path / CARD).exists() else f"# {folder.path.name}\n"
    return "\n".join(["---", *matter, "---", "", own])
