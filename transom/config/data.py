"""The schema of what is read: data files, generated data and tokenizers."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transom.config.brick import Brick, Schema


class PairFiles(Schema):
    """Parallel text: two aligned files, or one file that holds both sides. Each may be gzipped (``.gz``)."""

    source: str | None = Field(None, description="file of source sentences, one a line")
    target: str | None = Field(None, description="file of target sentences, one a line, aligned with source")
    pairs: str | None = Field(None, description="one .tsv, .csv or .jsonl file with both sides, instead of source and target")
    source_field: str | int | None = Field(
        None, description="column or key of the source in pairs; default 0 for .tsv, 'source' for .csv and .jsonl"
    )
    target_field: str | int | None = Field(
        None, description="column or key of the target in pairs; default 1 for .tsv, 'target' for .csv and .jsonl"
    )

    @model_validator(mode="after")
    def _one_form(self) -> "PairFiles":
        if (self.pairs is None) == (self.source is None and self.target is None) or (self.source is None) != (self.target is None):
            raise ValueError("expected either source and target, or pairs")
        return self


class Phrasebook(Brick):
    """English-Spanish sentence pairs from the built-in grammar."""

    kind: Literal["phrasebook"] = "phrasebook"
    n_train: int = Field(50000, ge=100, le=10_000_000, description="training pairs")
    n_valid: int = Field(1000, ge=10, le=10_000_000, description="validation pairs")
    n_test: int = Field(2000, ge=10, le=10_000_000, description="test pairs, whole word combinations of which are held out of training")
    seed: int = Field(1, description="seed of the draw")


class SequenceTask(Brick):
    """Random symbol sequences with a rule for the target: the same, reversed, or sorted."""

    kind: Literal["copy", "reverse", "sort"] = Field(..., description="the rule")
    n_train: int = Field(20000, ge=100, le=10_000_000, description="training pairs")
    n_valid: int = Field(500, ge=10, le=10_000_000, description="validation pairs")
    n_test: int = Field(1000, ge=10, le=10_000_000, description="test pairs, none of which is in the training set")
    n_symbols: int = Field(20, ge=2, le=26, description="different symbols")
    min_length: int = Field(1, ge=1, description="shortest sequence")
    max_length: int = Field(12, ge=1, le=10_000, description="longest sequence")
    seed: int = Field(1, description="seed of the draw")


class Data(Schema):
    """Where the examples come from and which of them are kept."""

    root: str = Field(".", description="folder that relative paths start from; itself relative to the recipe file")
    train: PairFiles | None = Field(None, description="training pairs")
    valid: PairFiles | None = Field(None, description="validation pairs; left out, 1 % of train is split off by hash")
    test: PairFiles | None = Field(None, description="test pairs: only the data report reads them, to tell which stand in train")
    generate: Annotated[Phrasebook | SequenceTask | None, Field(discriminator="kind")] = Field(
        None, description="generated pairs instead of files"
    )
    max_length_ratio: float | None = Field(None, gt=1, description="drop pairs of which one side is this many times longer in tokens")

    @model_validator(mode="after")
    def _one_origin(self) -> "Data":
        if (self.train is None) == (self.generate is None):
            raise ValueError("expected exactly one of data.train and data.generate; name your own files with --source and --target")
        for name in ("valid", "test"):
            if self.generate is not None and getattr(self, name) is not None:
                raise ValueError(f"data.generate makes its own {name} pairs; remove data.{name}")
        return self


class Tokenizer(Brick):
    """How text becomes tokens: byte-pair encoding (Sennrich et al. 2016), characters, or white-space words."""

    kind: Literal["bpe", "char", "whitespace"] = Field("bpe", description="the symbols: sub-words, characters or words")
    vocab_size: int = Field(10000, ge=8, le=1_000_000, description="largest number of symbols a side, special symbols included")
    joint: bool = Field(True, description="one vocabulary for both sides")
    lowercase: bool = Field(False, description="lower-case all text before anything else; the round trip is then exact only up to case")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="BPE-dropout (Provilkov et al. 2020): probability of skipping a merge, in training only"
    )

    @model_validator(mode="after")
    def _dropout_needs_merges(self) -> "Tokenizer":
        if self.dropout and self.kind != "bpe":
            raise ValueError(f"tokenizer.dropout needs tokenizer.kind = 'bpe', found {self.kind!r}")
        return self
