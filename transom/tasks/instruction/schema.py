"""The recipe of a model that answers, and what it alone has."""

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
            "--instructions", "FILE", "For a model that answers: a .tsv, .csv or .jsonl file of prompts and answers.", "train", "file"
        ),
        DataOption(
            "--valid-instructions",
            "FILE",
            "Validation prompts and answers; left out, 1 % is split off.",
            "valid",
            "file",
            "--instructions",
            "the instructions to train on",
        ),
    ),
    order=3,
)


class InstructionData(Data):
    """Instructions, each with its answer."""

    OPTIONS: ClassVar[tuple[DataOption, ...]] = ABOUT.options

    train: InstructionFiles | None = Field(None, description="training instructions")
    valid: InstructionFiles | None = Field(None, description="validation instructions; left out, 1 % of train is split off by hash")
    test: InstructionFiles | None = Field(
        None, description="test instructions: only the data report reads them, to tell which stand in train"
    )
    generate: Exercises | None = Field(None, description="instructions that every machine has, instead of files")
    too_long: Literal["truncate", "drop", "refuse"] = Field(
        "truncate",
        description="an instruction of more than model.max_seq_len tokens: the beginning of its prompt is left out, all of it is, or it is"
        " refused; an answer that has no room is left out",
    )

    @property
    def split_off(self) -> str:
        """Say what is taken for validation where no data are named."""
        return "1 % of the training instructions, split off by hash"


class InstructionTraining(AdamWTraining, TextTraining):
    """One training run of a model that answers."""

    optimizer: Optimizer = Field(AdamW(beta2=0.95, eps=1e-8, weight_decay=0.1), description="the optimizer brick")
    select_by: Literal["loss", "accuracy"] = Field("loss", description="validation figure that chooses the kept weights")
    validate_samples: int = Field(8, ge=0, description="validation prompts that are answered at a validation, to be shown")


class Replying(Sampling):
    """How a prompt is answered: as a text is gone on with, behind the symbol at which answers begin."""

    temperature: float = Field(0.0, ge=0, description=Sampling.model_fields["temperature"].description)


@register_task
class InstructionRecipe(TextRecipe):
    """A model that answers: a decoder that learns what to say to a prompt."""

    TASK: ClassVar[str] = "transom.tasks.instruction.task:InstructionTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "answer tokens"
    VERB: ClassVar[str] = "generate"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"An instruction"', '["An instruction"]')
    OF_PREFIX: ClassVar[Sight] = "some"

    task: Literal["instruction"] = Field("instruction", description="what the model learns to do")
    data: InstructionData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: LanguageModel = Field(Decoder(), description="the network; preset = NAME starts from a published one")
    training: InstructionTraining = Field(InstructionTraining(), description="the run")
    decoding: Replying = Field(Replying(), description="how prompts are answered")
