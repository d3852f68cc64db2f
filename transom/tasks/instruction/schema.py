"""Recipe of the instruction tuning task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import MIN_VALID, ChatTemplateConfig, DataConfig, ExercisesConfig, InstructionFilesConfig, TokenizerConfig
from transom.config.decoding import SamplingConfig
from transom.config.model import AnyLanguageModel, DecoderConfig
from transom.config.patterns import Coverage
from transom.config.recipe import TextRecipe
from transom.config.task_options import HEADER, TABLES, DataOption, TaskHelp, column_option
from transom.config.task_registry import register_task
from transom.config.training import AdamWConfig, AdamWTrainingConfig, AnyOptimizer, TextTrainingConfig

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--instructions", "FILE", f"For instruction tuning: a {TABLES} file of prompts and answers, or of chats.", "train", "file"
        ),
        DataOption(
            "--valid-instructions",
            "FILE",
            "Validation prompts and answers; default: 1% of the training instructions.",
            "valid",
            "file",
            "--instructions",
            "the instructions to train on",
        ),
        column_option("prompt", "prompt"),
        column_option("answer", "answer"),
        HEADER,
    ),
    order=3,
)


class InstructionDataConfig(DataConfig):
    """Instructions with reference answers."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: InstructionFilesConfig | None = Field(None, description="training instructions")
    valid: InstructionFilesConfig | None = Field(None, description="validation instructions; default: 1% of train, held out")
    test: InstructionFilesConfig | None = Field(
        None, description="test instructions; only the data report reads them, to find those that are also in train"
    )
    generate: ExercisesConfig | None = Field(None, description="built-in instructions instead of files")
    min_valid: int = MIN_VALID
    chat_template: ChatTemplateConfig = Field(ChatTemplateConfig(), description="template of conversations")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="treatment of an instruction of more than model.max_seq_len tokens: truncate its prompt from the left, drop it, or"
        " raise an error; an instruction whose answer alone does not fit is dropped",
    )

    @property
    def holdout_description(self) -> str:
        """Describe the samples held out for validation if the recipe names no validation files."""
        return "1% of the training instructions, held out"


class InstructionTrainingConfig(AdamWTrainingConfig, TextTrainingConfig):
    """Training settings of instruction tuning."""

    optimizer: AnyOptimizer = Field(AdamWConfig(beta2=0.95, eps=1e-8, weight_decay=0.1), description="the optimizer")
    best_checkpoint_metric: Literal["loss", "accuracy"] = Field("loss", description="validation metric that selects the saved weights")
    validate_samples: int = Field(8, ge=0, description="number of validation prompts shown with generated answers at each validation")


class InstructionDecodingConfig(SamplingConfig):
    """Sampling settings of answers. With the default temperature of 0, decoding is greedy."""

    temperature: float = Field(0.0, ge=0, description=SamplingConfig.model_fields["temperature"].description)


@register_task
class InstructionRecipe(TextRecipe):
    """An instruction-tuned decoder, trained to generate answers to prompts."""

    TASK: ClassVar[str] = "transom.tasks.instruction.task:InstructionTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "answer tokens"
    COMMAND: ClassVar[str] = "generate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"An instruction"', '["An instruction"]')
    PREFIX_COVERAGE: ClassVar[Coverage] = "some"

    task: Literal["instruction"] = Field("instruction", description="the task")
    data: InstructionDataConfig = Field(..., description="the data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="the tokenizer")
    model: AnyLanguageModel = Field(DecoderConfig(), description="the network; preset = NAME loads the configuration of a published model")
    training: InstructionTrainingConfig = Field(InstructionTrainingConfig(), description="training settings")
    decoding: InstructionDecodingConfig = Field(InstructionDecodingConfig(), description="sampling settings of answers")
