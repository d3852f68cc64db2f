"""Schemas of data files, generated data and tokenizers."""

import re
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from transom.config.component_registry import register_component
from transom.config.schema import ComponentConfig, Schema, Slot
from transom.config.task_options import PAIRS, TEXT, DataOption, format_flags
from transom.files.limits import MAX_VOCAB_SIZE


def _column_index(value: Any) -> Any:
    """Convert an index given as text, for example on the command line, to a number."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


AnyColumn = Annotated[str | int | None, BeforeValidator(_column_index)]
"""Column of a table: its name, or its index from 0."""


def _field_description(what: str, position: int) -> str:
    """Describe a field that selects a column."""
    return f"column or key of the {what}, or its index from 0; none finds it by its usual names, or takes column {position} without names"


class FilesConfig(Schema):
    """Files of examples."""

    @property
    @abstractmethod
    def paths(self) -> list[str]:
        """The files and folders, as the recipe names them."""

    @property
    def shown(self) -> list[str]:
        """Description for the model card: the files, and the part that is read."""
        return self.paths


class PairFilesConfig(FilesConfig):
    """Parallel text: two aligned files, or one file that holds both sides. Each may be gzipped (``.gz``)."""

    source: str | None = Field(None, description="file of source sentences, one per line")
    target: str | None = Field(None, description="file of target sentences, one per line, aligned with source")
    pairs: str | None = Field(
        None, description="one .tsv, .csv, .jsonl, .json or .parquet file with both sides, instead of source and target"
    )
    source_field: AnyColumn = Field(None, description=_field_description("source sentence", 0))
    target_field: AnyColumn = Field(None, description=_field_description("target sentence", 1))
    header: bool | None = Field(
        None, description="whether the first line of pairs (.tsv, .csv) is a header; none decides by its column names"
    )

    @model_validator(mode="after")
    def _one_form(self) -> "PairFilesConfig":
        if (self.pairs is None) == (self.source is None and self.target is None) or (self.source is None) != (self.target is None):
            raise ValueError("expected either source and target, or pairs")
        return self

    @property
    def paths(self) -> list[str]:
        """Paths of source and target file, or of the single file of pairs."""
        return [path for path in (self.source, self.target, self.pairs) if path is not None]


AnyGeneratedPairs = Annotated[ComponentConfig, Slot("generated_pairs")]


@register_component("generated_pairs")
class PhrasebookConfig(ComponentConfig):
    """English-Spanish sentence pairs from the built-in grammar."""

    kind: Literal["phrasebook"] = "phrasebook"
    n_train: int = Field(50000, ge=100, le=10_000_000, description="training pairs")
    n_valid: int = Field(1000, ge=10, le=10_000_000, description="validation pairs")
    n_test: int = Field(2000, ge=10, le=10_000_000, description="test pairs, with word combinations that do not occur in training")
    seed: int = Field(1, description="seed of the draw")


SequenceTaskKind = Literal["copy", "reverse", "sort"]
"""Treatment of a sequence."""


@register_component("generated_pairs")
class SequenceTaskConfig(ComponentConfig):
    """Random symbol sequences with a rule for the target: the same, reversed, or sorted."""

    kind: SequenceTaskKind = Field(..., description="the rule")
    n_train: int = Field(20000, ge=100, le=10_000_000, description="training pairs")
    n_valid: int = Field(500, ge=10, le=10_000_000, description="validation pairs")
    n_test: int = Field(1000, ge=10, le=10_000_000, description="test pairs, none of which is in the training set")
    n_symbols: int = Field(20, ge=2, le=26, description="different symbols")
    min_length: int = Field(1, ge=1, description="shortest sequence")
    max_length: int = Field(12, ge=1, le=10_000, description="longest sequence")
    seed: int = Field(1, description="seed of the draw")


class StandardLibraryConfig(ComponentConfig):
    """The source files of Python's standard library without its tests: real code that is available everywhere."""

    kind: Literal["python-stdlib"] = "python-stdlib"
    n_files: int | None = Field(None, ge=10, description="maximum number of files, chosen by a hash of their names; none for all")


class TextFilesConfig(FilesConfig):
    """Plain text: files, or folders searched recursively. Files may be gzipped (``.gz``)."""

    files: str | list[str] = Field(..., description="a file or a folder, or a list of them")
    suffixes: list[str] | None = Field(None, description='suffixes of the files to read from folders, as in [".py", ".md"]')
    document: Literal["file", "paragraph", "line"] = Field(
        "file",
        description="unit of text: the whole file, a paragraph separated by blank lines, or a line; each line of a"
        " .jsonl file and each row of a .parquet file is a document",
    )
    text_field: AnyColumn = Field(
        None,
        description="column or key of the text in .jsonl and .parquet files; none finds it by its usual names. If set, .csv, .tsv and .json"
        " files are read as tables too, otherwise as plain text",
    )
    start: float = Field(0.0, ge=0, lt=1, description="start of the text to use, as a fraction of its characters")
    end: float = Field(
        1.0, gt=0, le=1, description="end of the text to use, as a fraction of its characters; start = 0.9 selects the last tenth"
    )

    @model_validator(mode="after")
    def _something_between(self) -> "TextFilesConfig":
        if self.start >= self.end:
            raise ValueError(f"expected start below end, found {self.start} and {self.end}")
        return self

    @property
    def paths(self) -> list[str]:
        """All files and folders."""
        return [self.files] if isinstance(self.files, str) else self.files

    @property
    def shown(self) -> list[str]:
        """The files and folders, and which part of their text is read."""
        whole = (self.start, self.end) == (0.0, 1.0)
        return self.paths if whole else [*self.paths, f"{self.start:g} to {self.end:g} of it"]


DATA_OPTIONAL = "data later"
"""Validation context in which the fields of the data's origin are optional."""


class DataConfig(Schema):
    """Source of the examples; each task has its own schema."""

    OPTIONS: ClassVar[tuple[DataOption, ...]]
    """Options of ``transom train`` that name the user's files."""

    ORIGINS: ClassVar[tuple[str, ...]] = ("train", "generate")
    """Fields of which exactly one must be set."""

    root: str = Field(".", description="folder that relative paths start from; itself relative to the recipe file")
    train: FilesConfig | None
    valid: FilesConfig | None
    test: FilesConfig | None
    generate: ComponentConfig | None

    @model_validator(mode="after")
    def _one_origin(self, info: Any) -> "DataConfig":
        given = [name for name in self.ORIGINS if getattr(self, name)]
        if not given and info.context == DATA_OPTIONAL:
            return self
        if len(given) != 1:
            *most, last = (f"data.{name}" for name in self.ORIGINS)
            raise ValueError(f"expected exactly one of {', '.join(most)} and {last}; name your own files with {format_flags(self.OPTIONS)}")
        for name in ("valid", "test"):
            if given != ["train"] and getattr(self, name) is not None:
                raise ValueError(f"data.{given[0]} includes its own {name} data; remove data.{name}")
        return self

    @property
    def train_parts(self) -> list[FilesConfig]:
        """Training files."""
        return [] if self.train is None else [self.train]

    @property
    def test_parts(self) -> list[FilesConfig]:
        """Test files."""
        return [] if self.test is None else [self.test]

    @property
    def parts(self) -> list[FilesConfig]:
        """Training, validation and test files."""
        return [part for part in (self.train, self.valid, *self.test_parts) if part is not None]

    @property
    @abstractmethod
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""


PAIRS_HOLDOUT = "1% of the training pairs, held out"

MIN_VALID: Any = Field(0, ge=0, description="number of samples to split off at least, up to 10% of train, if there is no valid")


class PairDataConfig(DataConfig):
    """Sentence pairs and their filtering."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = PAIRS

    train: PairFilesConfig | None = Field(None, description="training pairs")
    valid: PairFilesConfig | None = Field(None, description="validation pairs; default: 1% of train, held out")
    test: PairFilesConfig | None = Field(None, description="test pairs: used only by the data report, to find duplicates of training data")
    generate: AnyGeneratedPairs | None = Field(None, description="generated pairs instead of files")
    min_valid: int = MIN_VALID
    max_length_ratio: float | None = Field(
        None, gt=1, description="drop pairs whose longer side has more than this many times the tokens of the other"
    )

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return PAIRS_HOLDOUT


LANGUAGE_TAG = re.compile("[A-Za-z0-9_-]{1,32}")
"""Allowed names of a target language."""


class LanguageConfig(Schema):
    """Sentence pairs with one target language, selected by a tag; one model can translate into several languages.

    The tag is a special token at the start of each source sentence (Johnson et al. 2017, section 3: <2es>); no text is tokenized to it.
    """

    tag: str = Field(..., description="name of the language for --to: letters, digits, - and _")
    train: PairFilesConfig | None = Field(None, description="training pairs")
    valid: PairFilesConfig | None = Field(None, description="validation pairs; default: 1% of train, held out")
    test: PairFilesConfig | None = Field(None, description="test pairs: used only by the data report, to find duplicates of training data")
    generate: AnyGeneratedPairs | None = Field(None, description="generated pairs instead of files")
    reverse: bool = Field(False, description="swap the source and target of all pairs")
    holdout_description: ClassVar[str] = PAIRS_HOLDOUT

    @field_validator("tag")
    @classmethod
    def _is_a_word(cls, tag: str) -> str:
        if not LANGUAGE_TAG.fullmatch(tag):
            raise ValueError(f"expected 1 to 32 letters, digits, - and _, found {tag!r}")
        return tag

    @model_validator(mode="after")
    def _one_origin(self) -> "LanguageConfig":
        if (self.train is None) == (self.generate is None):
            raise ValueError(f"expected exactly one of train and generate for {self.tag!r}")
        if self.train is None and (self.valid is not None or self.test is not None):
            raise ValueError(f"generate includes valid and test; remove those of {self.tag!r}")
        return self


class TextDataConfig(DataConfig):
    """Documents of plain text."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = TEXT

    train: TextFilesConfig | None = Field(None, description="training text")
    valid: TextFilesConfig | None = Field(
        None, description="validation text; default: 5% of the documents, held out, or the last 5% of a single one"
    )
    test: TextFilesConfig | None = Field(
        None, description="test text: used only by the data report, to find duplicates of training documents"
    )
    generate: StandardLibraryConfig | None = Field(None, description="generated or built-in text instead of files")

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return "5% of the documents, held out, or the last 5% of a single one"


class LabeledFilesConfig(FilesConfig):
    """Texts, or pairs of texts, with a class each, in one .tsv, .csv, .jsonl, .json or .parquet file."""

    file: str = Field(..., description="the file")
    text_field: AnyColumn = Field(None, description=_field_description("text", 0))
    second_field: AnyColumn = Field(
        None,
        description="column or key of the second text of pairs such as a premise and a hypothesis, or its index from 0; none reads one text"
        " per record",
    )
    label_field: AnyColumn = Field(
        None,
        description=_field_description("class", 1) + ", or 2 for pairs",
    )
    header: bool | None = Field(
        None, description="whether the first line of a .tsv or .csv file is a header; none decides by its column names"
    )

    @property
    def paths(self) -> list[str]:
        return [self.file]


class InstructionFilesConfig(FilesConfig):
    """Prompts with their answers, or conversations, in one .tsv, .csv, .jsonl, .json or .parquet file."""

    file: str = Field(..., description="the file")
    prompt_field: AnyColumn = Field(None, description=_field_description("prompt", 0))
    answer_field: AnyColumn = Field(None, description=_field_description("answer", 1))
    header: bool | None = Field(
        None, description="whether the first line of a .tsv or .csv file is a header; none decides by its column names"
    )

    @property
    def paths(self) -> list[str]:
        return [self.file]


class ChatTemplateConfig(Schema):
    """Template of the turns before a message, in the prompt of a conversation; used in training and by ``transom chat``."""

    turn: str = Field(
        "User: {user}\nAssistant: {assistant}", description="a previous message and its answer, in place of {user} and {assistant}"
    )
    separator: str = Field("\n\n", description="text between the system prompt, the turns and the message")

    @field_validator("turn")
    @classmethod
    def _has_both(cls, turn: str) -> str:
        if turn.count("{user}") != 1 or turn.count("{assistant}") != 1 or turn.index("{user}") > turn.index("{assistant}"):
            raise ValueError(f"expected {{user}} and then {{assistant}}, once each, found {turn!r}")
        return turn


class ExercisesConfig(ComponentConfig):
    """Generated instructions: translate phrasebook sentences in either direction, and copy, reverse or sort letters."""

    kind: Literal["exercises"] = "exercises"
    n_train: int = Field(60000, ge=600, le=1_000_000, description="training instructions")
    n_valid: int = Field(600, ge=60, le=1_000_000, description="validation instructions")
    n_test: int = Field(600, ge=60, le=1_000_000, description="test instructions, none of which is in the training set")
    seed: int = Field(1, description="seed of the draw")


class ImageFilesConfig(FilesConfig):
    """Images with classes: class folders CLASS/NAME.jpg, also inside of split folders (train, val, test), or one folder with a table.

    Without class folders, the classes are read from a table such as labels.csv with the columns image and label, or from file names of a
    class and a number, such as cat.0.jpg.
    """

    images: str = Field(..., description="folder or .zip of images")

    @property
    def paths(self) -> list[str]:
        """The folder or .zip."""
        return [self.images]


class DigitsConfig(ComponentConfig):
    """Handwritten digits of 8 x 8 pixels, 1,797 of them (Alpaydin & Kaynak 1998; they come with scikit-learn)."""

    kind: Literal["digits"] = "digits"
    fold: int = Field(1, ge=1, description="index of the test fold, from 1")
    n_folds: int = Field(5, ge=2, le=100, description="number of folds of the shuffled digits")
    seed: int = Field(1, ge=0, description="seed of the shuffle")

    @model_validator(mode="after")
    def _is_one_of_them(self) -> "DigitsConfig":
        if self.fold > self.n_folds:
            raise ValueError(f"expected a fold from 1 to n_folds = {self.n_folds}, found {self.fold}")
        return self


class SpecialTokenNames(Schema):
    """Contents of the special tokens of a pretrained tokenizer by role, such as ``</s>``."""

    pad_token: str | None = Field(None, description="padding")
    bos_token: str | None = Field(None, description="beginning of a sequence")
    eos_token: str | None = Field(None, description="end of a sequence")
    unk_token: str | None = Field(None, description="unknown piece of text")
    mask_token: str | None = Field(None, description="mask token of masked language models")
    sep_token: str | None = Field(None, description="separator of texts, which also ends them")
    cls_token: str | None = Field(None, description="first token of a text")
    decoder_start_token: str | None = Field(None, description="first token that the decoder of an encoder-decoder reads")

    @property
    def given(self) -> dict[str, str]:
        """Contents of the tokens that are named."""
        return {name: content for name, content in self if content is not None}


class TokenizerConfig(ComponentConfig):
    """Tokenization: subwords of one of four algorithms, characters, words separated by white space, or a pretrained tokenizer.

    Byte-pair encoding (Sennrich et al. 2016) is transom's own (``bpe``) or byte-level as in GPT-2, Llama 3 and Qwen (``byte-bpe``).
    ``wordpiece`` is BERT's, ``unigram`` (Kudo 2018) T5's and XLM-R's. ``pretrained`` reads a ``tokenizer.json`` of the tokenizers library.
    """

    kind: Literal["bpe", "char", "whitespace", "byte-bpe", "wordpiece", "unigram", "pretrained"] = Field(
        "bpe", description="the symbols: subwords, characters or words"
    )
    vocab_size: int = Field(
        10000,
        ge=8,
        le=MAX_VOCAB_SIZE,
        description="maximum number of tokens per side, special tokens included; tags of target languages are added;"
        " without effect on a pretrained tokenizer",
    )
    lowercase: bool = Field(False, description="lower-case all text before anything else; the round trip is then exact only up to case")
    file: str | None = Field(None, description="tokenizer.json of kind 'pretrained', relative to data.root")
    special_tokens: SpecialTokenNames = Field(
        SpecialTokenNames(), description="special tokens of kind 'pretrained' by role; others are found by their usual contents"
    )

    @model_validator(mode="after")
    def _file_is_pretrained(self) -> "TokenizerConfig":
        pretrained = self.kind == "pretrained"
        if pretrained and self.file is None:
            raise ValueError("tokenizer.kind = 'pretrained' needs tokenizer.file; name a tokenizer.json")
        if not pretrained and (self.file is not None or self.special_tokens.given):
            raise ValueError(f"tokenizer.file and tokenizer.special_tokens need tokenizer.kind = 'pretrained', found {self.kind!r}")
        if pretrained and self.lowercase:
            raise ValueError("tokenizer.lowercase: expected false for kind 'pretrained', whose file decides it, found true")
        return self


class PairTokenizerConfig(TokenizerConfig):
    """Tokenization of both sides of a pair."""

    joint: bool = Field(True, description="one vocabulary for both sides")
    bpe_dropout: float = Field(
        0.0, ge=0, lt=1, description="BPE-dropout (Provilkov et al. 2020): probability of skipping a merge, in training only"
    )

    @model_validator(mode="after")
    def _dropout_needs_merges(self) -> "PairTokenizerConfig":
        if self.bpe_dropout and self.kind not in ("bpe", "byte-bpe"):
            raise ValueError(f"tokenizer.bpe_dropout needs tokenizer.kind = 'bpe' or 'byte-bpe', found {self.kind!r}")
        if self.kind == "pretrained" and not self.joint:
            raise ValueError("tokenizer.joint: expected true for kind 'pretrained', which has one file, found false")
        return self
