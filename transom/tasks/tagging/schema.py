"""Recipe of the tagging task, and the configuration of its network."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from transom.config.architecture import Fraction
from transom.config.component_registry import register_component
from transom.config.data import DataConfig, FilesConfig, PhrasebookConfig, TokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import EncoderConfig
from transom.config.recipe import Metric, TextRecipe
from transom.config.task_options import Command, DataOption, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import EncoderTrainingConfig, RDropTrainingConfig

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--tagged",
            "FILE",
            "For a tagger: a word and its tag per line, sentences separated by empty lines.",
            "train",
            "file",
        ),
        DataOption(
            "--valid-tagged",
            "FILE",
            "Validation sentences in the same format; default: 10% of the training sentences.",
            "valid",
            "file",
            "--tagged",
            "the sentences to train on",
        ),
    ),
    order=7,
    commands=(Command("tag", "Tag each word of a text and find its entities."),),
    evaluated_by="transom tag RUN --tagged FILE",
)


class TaggedFilesConfig(FilesConfig):
    """A file of tagged sentences in the format of CoNLL 2003, which may be gzipped.

    Each line contains a word and its tag. An empty line follows each sentence.
    """

    file: str = Field(..., description="the file")
    word_column: int = Field(0, description="index of the column of words, from 0; -1 is the last column")
    tag_column: int = Field(
        -1,
        description="index of the column of tags, from 0; -1 is the last column. Tags mark entities in IOB2, IOB1 or IOBES, or are"
        " independent of each other",
    )

    @property
    def paths(self) -> list[str]:
        return [self.file]


class TaggedDataConfig(DataConfig):
    """Sentences with a tag per word."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: TaggedFilesConfig | None = Field(None, description="training sentences")
    valid: TaggedFilesConfig | None = Field(None, description="validation sentences; default: 10% of train, held out")
    test: TaggedFilesConfig | None = Field(
        None, description="test sentences; only the data report reads them, to find those that are also in train"
    )
    generate: PhrasebookConfig | None = Field(
        None,
        description="English sentences of the built-in phrasebook, in which people, places, numbers, dates and times are entities",
    )

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return "10% of the training sentences, held out"


@register_component("model")
class TokenTaggerConfig(EncoderConfig):
    """An encoder that predicts the tag of each word."""

    IMPLEMENTED_IN: ClassVar[str] = "transom.tasks.tagging.model"
    FROM_DATA: ClassVar[tuple[str, ...]] = ("classes",)
    FAMILY: ClassVar[str] = "an encoder-only Transformer for token tagging"

    kind: Literal["token-tagger"] = "token-tagger"
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False, description="the tags; set from the data")
    classifier_dropout: Fraction = Field(0.1, description="dropout probability before the linear classifier")


class TaggingTrainingConfig(EncoderTrainingConfig, RDropTrainingConfig):
    """Training settings of a tagger."""

    blank_noising: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="mean fraction of the input tokens replaced by [UNK] in training (blank noising, Xie et al. 2017), resampled in each"
        " epoch; the fraction of each sentence is uniform from 0 to twice the mean",
    )
    best_checkpoint_metric: Literal["loss", "accuracy", "f1"] = Field(  # type: ignore[assignment]
        "loss", description="validation metric that selects the saved weights; f1 is entity F1"
    )
    validate_samples: int = Field(5, ge=0, description="number of validation sentences shown with predicted tags in the report")


class TaggingInferenceConfig(TextInferenceConfig):
    """Inference settings of a tagger."""

    word_splitting: Literal["punctuation", "spaces"] = Field(
        "punctuation",
        description="places at which texts are split into words: at spaces and around punctuation, or at spaces only; choose the splitting"
        " of the training data",
    )


@register_task
class TaggingRecipe(TextRecipe):
    """A tagger: an encoder that predicts the tag of each word."""

    TASK: ClassVar[str] = "transom.tasks.tagging.task:TaggingTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "words"
    COMMAND: ClassVar[str] = "tag"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')
    METRICS: ClassVar[tuple[Metric, ...]] = (Metric("f1", "entity F1", 2, "%"),)

    task: Literal["tagging"] = Field("tagging", description="the task")
    data: TaggedDataConfig = Field(..., description="the data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="the tokenizer")
    model: TokenTaggerConfig = Field(
        TokenTaggerConfig(), description="the network; preset = NAME loads the configuration of a published model"
    )
    training: TaggingTrainingConfig = Field(TaggingTrainingConfig(), description="training settings")
    decoding: TaggingInferenceConfig = Field(TaggingInferenceConfig(), description="inference settings")
