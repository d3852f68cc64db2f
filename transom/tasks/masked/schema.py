"""The recipe of a masked language model, and what it alone has."""

from typing import ClassVar, Literal

from pydantic import Field

from transom.config.data import TextData, Tokenizer
from transom.config.decoding import Reading
from transom.config.model import MaskedEncoder
from transom.config.options import TEXT, TaskHelp, Verb
from transom.config.recipe import TextRecipe
from transom.config.registry import register_task
from transom.config.training import EncoderTraining

ABOUT = TaskHelp(options=TEXT, order=4, verbs=(Verb("fill", "Name the words behind the masks of a text."),))


class MaskedTraining(EncoderTraining):
    """One training run of an encoder that names masked tokens."""

    mask_share: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are to be named (Devlin et al. 2019, section 3.1)")
    validate_samples: int = Field(3, ge=0, description="validation documents of which a token is filled in at a validation, to be shown")


@register_task
class MaskedRecipe(TextRecipe):
    """A masked language model: an encoder that learns to name the tokens behind masks."""

    TASK: ClassVar[str] = "transom.tasks.masked.task:MaskedTask"
    HELP: ClassVar[TaskHelp] = ABOUT
    COUNTED: ClassVar[str] = "masked tokens"
    VERB: ClassVar[str] = "fill"
    EXAMPLE: ClassVar[tuple[str, str]] = ('"A text with a [MASK] in it"', '["A text with a [MASK] in it"]')

    task: Literal["masked"] = Field("masked", description="what the model learns to do")
    data: TextData = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to tokens")
    model: MaskedEncoder = Field(MaskedEncoder(), description="the network; preset = NAME starts from a published one")
    training: MaskedTraining = Field(MaskedTraining(), description="the run")
    decoding: Reading = Field(Reading(), description="how texts are read")
