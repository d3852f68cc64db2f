"""The recipe of a tagger, and what it alone has."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import Data, Files, Phrasebook, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import TokenTagger
from transom.config.options import DataOption, TaskHelp
from transom.config.recipe import TextRecipe
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
)


class TaggedFiles(Files):
    """Sentences of tagged words, one word a line with its tag, an empty line after each sentence (``.gz`` too), as in CoNLL 2003."""

    file: str = Field(..., description="the file")
    word_column: int = Field(0, description="column of the word, from 0; -1 is the last one")
    tag_column: int = Field(-1, description="column of the tag; tags of entities are IOB2, IOB1 or IOBES, any other stand for themselves")

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


class TaggingTraining(EncoderTraining, ConsistentTraining):
    """One training run of a tagger."""

    token_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the tokens for which [UNK] stands, drawn anew each time (Xie et al. 2017); per sentence up to twice that",
    )
    select_by: Literal["loss", "accuracy", "f1"] = Field(  # type: ignore[assignment]
        "loss", description="validation figure that chooses the kept weights; f1 is of whole entities"
    )
    validate_samples: int = Field(5, ge=0, description="validation sentences that are tagged at a validation, to be shown")


class TagReading(Reading):
    """How texts are read that are to be tagged."""

    words: Literal["punctuation", "spaces"] = Field(
        "punctuation", description="how a text is cut into words: each sign of punctuation is one too, or at spaces alone; as in the data"
    )


@register_task
class TaggingRecipe(TextRecipe):
    """A tagger: an encoder that learns the tag of each word."""

    TASK: ClassVar[str] = "transom.tasks.tagging.task:TaggingTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "words"
    VERB: ClassVar[str] = "tag"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')

    task: Literal["tagging"] = Field("tagging", description="what the model learns to do")
    data: TaggedData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: TokenTagger = Field(TokenTagger(), description="the network; preset = NAME starts from a published one")
    training: TaggingTraining = Field(TaggingTraining(), description="the run")
    decoding: TagReading = Field(TagReading(), description="how texts are read")
