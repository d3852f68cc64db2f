"""Recipe of the text classification task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import Data, LabelledFiles, Phrasebook, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import TextClassifier
from transom.config.options import DataOption, TaskHelp, Verb
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import ConsistentTraining, EncoderTraining

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--labelled", "FILE", "Train a text classifier on a .tsv, .csv or .jsonl file of texts and classes, or .gz.", "train", "file"
        ),
        DataOption(
            "--valid-labelled",
            "FILE",
            "Validation texts in the same format; default: 10 % of the training texts.",
            "valid",
            "file",
            "--labelled",
            "the texts to train on",
        ),
    ),
    order=5,
    scored_by="a .tsv, .csv or .jsonl file of texts and classes",
    verbs=(Verb("classify", "Predict the class of a text, or of each line of a file."),),
)


class LabelledData(Data):
    """Texts with classes."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: LabelledFiles | None = Field(None, description="training texts")
    valid: LabelledFiles | None = Field(None, description="validation texts; default: 10 % of train, split off by hash")
    test: LabelledFiles | None = Field(
        None, description="test texts; only the data report reads them, to find those that are also in train"
    )
    generate: Phrasebook | None = Field(None, description="sentences of the built-in phrasebook, with their language as class")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="treatment of a training text of more than model.max_seq_len tokens: truncate it, drop it, or raise an error;"
        " validation texts are truncated, unless set to refuse",
    )

    @property
    def split_off(self) -> str:
        """Description of the validation data if none are given."""
        return "10 % of the training texts, split off by hash"


class ClassificationTraining(EncoderTraining, ConsistentTraining):
    """Training settings of a text classifier."""

    token_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability of dropping each token of a training text, resampled each time (Iyyer et al. 2015)",
    )
    validate_samples: int = Field(5, ge=0, description="number of validation texts shown with their predicted class at each validation")


@register_task
class ClassificationRecipe(TextRecipe):
    """A text classifier: an encoder that predicts the class of a text."""

    TASK: ClassVar[str] = "transom.tasks.classification.task:ClassificationTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "texts"
    VERB: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')

    task: Literal["classification"] = Field("classification", description="the task")
    data: LabelledData = Field(..., description="the data")
    tokenizer: Tokenizer = Field(Tokenizer(), description="the tokenizer")
    model: TextClassifier = Field(TextClassifier(), description="the network; preset = NAME loads the configuration of a published model")
    training: ClassificationTraining = Field(ClassificationTraining(), description="training settings")
    decoding: Reading = Field(Reading(), description="inference settings")
