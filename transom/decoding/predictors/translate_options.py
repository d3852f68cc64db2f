"""Options of translation."""

from typing import Literal, TypedDict

from transom.decoding.inference import ProgressCallback


class TranslateOptions(TypedDict, total=False):
    """Options of translation. An option that is missing or None uses the setting of the recipe or the default given here.

    Attributes:
        beam_size: hypotheses kept per sentence; 1 is greedy search.
        length_penalty: alpha of GNMT's length penalty.
        min_length: minimum tokens of a translation.
        max_length: maximum tokens of a translation, end token included.
        batch_tokens: maximum source tokens per batch, padding included; default 1,024, or 1,024 per thread where threads share a batch.
        too_long: treatment of texts longer than the context window: "split" splits a text at sentence ends and joins the translations,
            "refuse" raises an error.
        name: origin of the texts, for messages; default "text".
        notify: progress callback, called with the number of pieces done and of all pieces.
        to: tag of the target language of a multilingual model.
        sample: sample the translations instead of searching for the most probable ones; ``beam_size`` and ``length_penalty`` do not apply.
        temperature, top_k, top_p, min_p, typical_p: settings of sampling; see ``config.decoding.SamplingConfig``.
        seed: random seed of sampling.
    """

    beam_size: int | None
    length_penalty: float | None
    min_length: int | None
    max_length: int | None
    batch_tokens: int | None
    too_long: Literal["split", "refuse"] | None
    name: str | None
    notify: ProgressCallback | None
    to: str | None
    sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    seed: int | None
