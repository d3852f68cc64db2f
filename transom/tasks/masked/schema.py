"""Recipe of the masked language modeling task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import TextDataConfig, TokenizerConfig
from transom.config.decoding import TextInferenceConfig
from transom.config.model import MaskedLMConfig
from transom.config.recipe import TextRecipe
from transom.config.task_options import TEXT, Command, TaskHelp
from transom.config.task_registry import register_task
from transom.config.training import EncoderTrainingConfig

ABOUT = TaskHelp(options=TEXT, order=4, commands=(Command("fill", "Predict the masked words of a text."),))


class MaskedTrainingConfig(EncoderTrainingConfig):
    """Training settings of a masked language model."""

    mlm_probability: float = Field(0.15, gt=0, lt=1, description="fraction of the tokens to predict (Devlin et al. 2019, section 3.1)")
    validate_samples: int = Field(
        3, ge=0, description="number of excerpts of the validation documents shown with a predicted token at each validation"
    )


@register_task
class MaskedRecipe(TextRecipe):
    """A masked language model: an encoder trained to predict masked tokens."""

    TASK: ClassVar[str] = "transom.tasks.masked.task:MaskedTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    UNIT: ClassVar[str] = "masked tokens"
    COMMAND: ClassVar[str] = "fill"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text with a [MASK] in it"', '["A text with a [MASK] in it"]')

    task: Literal["masked"] = Field("masked", description="the task")
    data: TextDataConfig = Field(..., description="the data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="the tokenizer")
    model: MaskedLMConfig = Field(MaskedLMConfig(), description="the network; preset = NAME loads the configuration of a published model")
    training: MaskedTrainingConfig = Field(MaskedTrainingConfig(), description="training settings")
    decoding: TextInferenceConfig = Field(TextInferenceConfig(), description="inference settings")
