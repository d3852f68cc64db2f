"""Recipe of the instruction tuning task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import Data, Exercises, InstructionFiles, Tokenizer
from transom.config.decoding import Sampling
from transom.config.model import Decoder, LanguageModel
from transom.config.options import DataOption, TaskHelp
from transom.config.patterns import Sight
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import AdamW, AdamWTraining, Optimizer, TextTraining

ABOUT = TaskHelp(
    options=(
        DataOption(
            "--instructions", "FILE", "Train an instruction model on a .tsv, .csv or .jsonl file of prompts and answers.", "train", "file"
        ),
        DataOption(
            "--valid-instructions",
            "FILE",
            "Validation prompts and answers; default: 1 % of the training instructions.",
            "valid",
            "file",
            "--instructions",
            "the instructions to train on",
        ),
    ),
    order=3,
)


class InstructionData(Data):
    """Instructions with reference answers."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: InstructionFiles | None = Field(None, description="training instructions")
    valid: InstructionFiles | None = Field(None, description="validation instructions; default: 1 % of train, split off by hash")
    test: InstructionFiles | None = Field(
        None, description="test instructions; only the data report reads them, to find those that are also in train"
    )
    generate: Exercises | None = Field(None, description="built-in instructions instead of files")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="treatment of an instruction of more than model.max_seq_len tokens: truncate its prompt from the left, drop it, or"
        " raise an error; an instruction whose answer alone does not fit is dropped",
    )

    @property
    def split_off(self) -> str:
        """Description of the validation data if none are given."""
        return "1 % of the training instructions, split off by hash"


class InstructionTraining(AdamWTraining, TextTraining):
    """Training settings of instruction tuning."""

    optimizer: Optimizer = Field(AdamW(beta2=0.95, eps=1e-8, weight_decay=0.1), description="the optimizer")
    select_by: Literal["loss", "accuracy"] = Field("loss", description="validation metric that selects the saved weights")
    validate_samples: int = Field(8, ge=0, description="number of validation prompts shown with generated answers at each validation")


class Replying(Sampling):
    """Sampling settings of answers, which are generated after the answer token; greedy by default."""

    temperature: float = Field(0.0, ge=0, description=Sampling.model_fields["temperature"].description)


@register_task
class InstructionRecipe(TextRecipe):
    """An instruction-tuned decoder, trained to generate answers to prompts."""

    TASK: ClassVar[str] = "transom.tasks.instruction.task:InstructionTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "answer tokens"
    VERB: ClassVar[str] = "generate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"An instruction"', '["An instruction"]')
    OF_PREFIX: ClassVar[Sight] = "some"

    task: Literal["instruction"] = Field("instruction", description="the task")
    data: InstructionData = Field(..., description="the data")
    tokenizer: Tokenizer = Field(Tokenizer(), description="the tokenizer")
    model: LanguageModel = Field(Decoder(), description="the network; preset = NAME loads the configuration of a published model")
    training: InstructionTraining = Field(InstructionTraining(), description="training settings")
    decoding: Replying = Field(Replying(), description="sampling settings of answers")
