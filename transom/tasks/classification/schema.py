"""Recipe of the text classification task."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from transom.config.data import DataConfig, LabeledFilesConfig, PhrasebookConfig, TokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import TextClassifierConfig
from transom.config.recipe import Metric, TextRecipe
from transom.config.task_options import HEADER, SECOND_FIELD, TABLES, TEXT_FIELD, Command, DataOption, TaskHelp, column_option
from transom.config.task_registry import register_task
from transom.config.training import EncoderTrainingConfig, RDropTrainingConfig

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--labeled-data",
            "FILE",
            f"For a text classifier: a {TABLES} file of texts and classes.",
            "train",
            "file",
        ),
        DataOption(
            "--valid-labeled-data",
            "FILE",
            "Validation texts in the same format; default: 10% of the training texts.",
            "valid",
            "file",
            "--labeled-data",
            "the texts to train on",
        ),
        TEXT_FIELD,
        SECOND_FIELD,
        column_option("label", "class"),
        HEADER,
        DataOption(
            *("--multi-label", "", "Whether | in the class of a text separates several labels; needed if a class contains |."),
            *("data", "multi_label"),
            is_path=False,
            is_flag=True,
        ),
    ),
    order=5,
    scored_by=f"a {TABLES} file of texts and classes",
    commands=(Command("classify", "Predict the class of a text, or of each line of a file."),),
)


class LabeledDataConfig(DataConfig):
    """Texts with classes."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: LabeledFilesConfig | None = Field(None, description="training texts")
    valid: LabeledFilesConfig | None = Field(None, description="validation texts; default: 10% of train, held out")
    test: LabeledFilesConfig | None = Field(
        None, description="test texts; only the data report reads them, to find those that are also in train"
    )
    generate: PhrasebookConfig | None = Field(None, description="sentences of the built-in phrasebook, each with its language as class")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="treatment of a training text of more than model.max_seq_len tokens: truncate it, drop it, or raise an error; pairs are"
        " truncated at the end of the longer text;"
        " validation texts are truncated unless too_long is 'refuse'",
    )
    multi_label: bool | None = Field(
        None,
        description="whether a text has any number of labels: separated by | in the column of the class, or an array in JSON; none reads"
        " arrays as several labels, and refuses | as ambiguous",
    )

    @model_validator(mode="after")
    def _generated_texts_have_one_class(self) -> "LabeledDataConfig":
        if self.multi_label and self.generate is not None:
            raise ValueError("data.multi_label: expected false with data.generate, whose texts have one class each, found true; remove it")
        return self

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return "10% of the training texts, held out"


class ClassificationTrainingConfig(EncoderTrainingConfig, RDropTrainingConfig):
    """Training settings of a text classifier."""

    word_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability of dropping each token of a training text, with new random choices in each epoch (Iyyer et al. 2015)",
    )
    validate_samples: int = Field(5, ge=0, description="number of validation texts shown with their predicted class at each validation")
    best_checkpoint_metric: Literal["loss", "accuracy", "micro_f1", "macro_f1"] = Field(  # type: ignore[assignment]
        "loss", description="validation metric that selects the saved weights; accuracy for one class per text, F1 for several labels"
    )


@register_task
class ClassificationRecipe(TextRecipe):
    """A text classifier: an encoder that predicts the class of a text."""

    TASK: ClassVar[str] = "transom.tasks.classification.task:ClassificationTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "texts"
    COMMAND: ClassVar[str] = "classify"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text"', '["A text"]')
    METRICS: ClassVar[tuple[Metric, ...]] = (
        Metric("micro_f1", "micro F1", 2, "%"),
        Metric("macro_f1", "macro F1", 2, "%"),
        Metric("subset_accuracy", "subset accuracy", 2, "%"),
        Metric("hamming_loss", "Hamming loss", 4),
    )

    task: Literal["classification"] = Field("classification", description="the task")
    data: LabeledDataConfig = Field(..., description="the data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="the tokenizer")
    model: TextClassifierConfig = Field(
        TextClassifierConfig(), description="the network; preset = NAME loads the configuration of a published model"
    )
    training: ClassificationTrainingConfig = Field(ClassificationTrainingConfig(), description="training settings")
    decoding: TextInferenceConfig = Field(TextInferenceConfig(), description="inference settings")

    @property
    def example(self) -> tuple[str, str]:
        """``EXAMPLE``, with a second text if the recipe reads pairs."""
        if self.data.train is None or self.data.train.second_field is None:
            return self.EXAMPLE
        return '"A text" --second "Another text"', '[("A text", "Another text")]'
