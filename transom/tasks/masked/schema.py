"""Recipe of the masked language modeling task."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import TextData, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import MaskedEncoder
from transom.config.options import TEXT, TaskHelp, Verb
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import EncoderTraining

ABOUT = TaskHelp(options=TEXT, order=4, verbs=(Verb("fill", "Predict the masked words of a text."),))


class MaskedTraining(EncoderTraining):
    """Training settings of a masked language model."""

    mask_share: float = Field(0.15, gt=0, lt=1, description="fraction of the tokens to predict (Devlin et al. 2019, section 3.1)")
    validate_samples: int = Field(3, ge=0, description="number of validation documents shown with a predicted token at each validation")


@register_task
class MaskedRecipe(TextRecipe):
    """A masked language model: an encoder trained to predict masked tokens."""

    TASK: ClassVar[str] = "transom.tasks.masked.task:MaskedTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "masked tokens"
    VERB: ClassVar[str] = "fill"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text with a [MASK] in it"', '["A text with a [MASK] in it"]')

    task: Literal["masked"] = Field("masked", description="the task")
    data: TextData = Field(..., description="the data")
    tokenizer: Tokenizer = Field(Tokenizer(), description="the tokenizer")
    model: MaskedEncoder = Field(MaskedEncoder(), description="the network; preset = NAME loads the configuration of a published model")
    training: MaskedTraining = Field(MaskedTraining(), description="training settings")
    decoding: Reading = Field(Reading(), description="inference settings")
