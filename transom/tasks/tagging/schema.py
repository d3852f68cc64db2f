"""The recipe of a tagger, its network, and what else it alone has."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from transom.config.architecture import Fraction
from transom.config.components import component
from transom.config.data import Data, Files, Phrasebook, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import Encoder
from transom.config.options import DataOption, TaskHelp, Verb
from transom.config.recipe import Metric, TextRecipe
from transom.config.registry import register_task
from transom.config.training import ConsistentTraining, EncoderTraining

ABOUT = TaskHelp(
    options=(
        DataOption("--tagged", "FILE", "For a tagger: a word and its tag a line, an empty line between sentences.", "train", "file"),
        DataOption(
            "--valid-tagged",
            "FILE",
            "The same for validation; left out, 10 % is split off.",
            "valid",
            "file",
            "--tagged",
            "the sentences to train on",
        ),
    ),
    order=7,
    verbs=(Verb("tag", "Tag each word of a text, and find the entities in it."),),
)


class TaggedFiles(Files):
    """Sentences of tagged words, one word a line with its tag, an empty line after each sentence (``.gz`` too), as in CoNLL 2003."""

    file: str = Field(..., description="the file")
    word_column: int = Field(0, description="column of the word, from 0; -1 is the last one")
    tag_column: int = Field(-1, description="column of the tag, likewise; tags are IOB2, IOB1 or IOBES, or stand each for themselves")

    @property
    def paths(self) -> list[str]:
        """The one file."""
        return [self.file]


class TaggedData(Data):
    """Sentences whose words have a tag each."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: TaggedFiles | None = Field(None, description="training sentences")
    valid: TaggedFiles | None = Field(None, description="validation sentences; left out, 10 % of train is split off by hash")
    test: TaggedFiles | None = Field(None, description="test sentences: only the data report reads them, to tell which stand in train")
    generate: Phrasebook | None = Field(
        None,
        description="English sentences of the built-in phrasebook: people, places, numbers, dates and times, as its grammar knows them",
    )

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return "10 % of the training sentences, split off by hash"


@component("model")
class TokenTaggerConfig(Encoder):
    """An encoder that predicts the tag of each word."""

    IMPLEMENTED_IN: ClassVar[str] = "transom.tasks.tagging.model"
    FROM_DATA: ClassVar[tuple[str, ...]] = ("classes",)
    FAMILY: ClassVar[str] = "an encoder-only Transformer for tags of words"

    kind: Literal["token-tagger"] = "token-tagger"
    classes: tuple[Annotated[str, Field(min_length=1)], ...] = Field((), strict=False, description="the tags; set from the data")
    classifier_dropout: Fraction = Field(0.1, description="on the vectors that the tags are predicted from")


class TaggingTraining(EncoderTraining, ConsistentTraining):
    """One training run of a tagger."""

    token_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="mean fraction of the tokens replaced by [UNK], drawn anew each time (Xie et al. 2017); per sentence up to twice that",
    )
    select_by: Literal["loss", "accuracy", "f1"] = Field(  # type: ignore[assignment]
        "loss", description="validation figure that chooses the kept weights; f1 is of whole entities"
    )
    validate_samples: int = Field(5, ge=0, description="validation sentences whose predicted tags the report shows")


class TagReading(Reading):
    """How texts are read before they are tagged."""

    words: Literal["punctuation", "spaces"] = Field(
        "punctuation", description="how a text is split into words, as in the data: at spaces and around punctuation, or at spaces alone"
    )


@register_task
class TaggingRecipe(TextRecipe):
    """A tagger: an encoder that learns the tag of each word."""

    TASK: ClassVar[str] = "transom.tasks.tagging.task:TaggingTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "words"
    VERB: ClassVar[str] = "tag"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')
    METRICS: ClassVar[tuple[Metric, ...]] = (Metric("f1", "entity F1", 2, "%"),)

    task: Literal["tagging"] = Field("tagging", description="what the model learns to do")
    data: TaggedData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: TokenTaggerConfig = Field(TokenTaggerConfig(), description="the network; preset = NAME starts from a published one")
    training: TaggingTraining = Field(TaggingTraining(), description="the run")
    decoding: TagReading = Field(TagReading(), description="how texts are read")
