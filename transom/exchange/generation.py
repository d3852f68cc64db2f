"""Settings of generation: our decoding settings, and the library's ``generation_config.json``."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transom.exchange.config_rows import Fields


class DecodingSettings(NamedTuple):
    """Decoding settings, and lines on those that have no equal on the other side."""

    fields: Fields
    notes: list[str]


_SAMPLING = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p"}
_LENGTHS = {"max_new_tokens": "max_new_tokens", "min_new_tokens": "min_new_tokens"}
_NEUTRAL: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "length_penalty": 1.0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "renormalize_logits": False,
}
"""Foreign settings without an equal of ours, with the value at which they have no effect."""

_REASONS = {
    "repetition_penalty": "it scales logits there and log-probabilities here",
    "length_penalty": "it divides by length^alpha there, and by ((5 + length) / 6)^alpha here",
    "forced_eos_token_id": "it ends answers of the maximum length with the end token",
}


def read_sampling(generation: Mapping[str, Any]) -> DecodingSettings:
    """Convert settings of generation to those of a language model; without ``do_sample`` the most probable token is chosen."""
    fields = {ours: generation[name] for name, ours in {**_SAMPLING, **_LENGTHS}.items() if generation.get(name) is not None}
    if not generation.get("do_sample", False):
        fields = {name: value for name, value in fields.items() if name not in _SAMPLING} | {"temperature": 0.0}
    if fields.get("top_k") == 0:
        del fields["top_k"]
    if fields.get("typical_p") == 1.0:
        del fields["typical_p"]
    return DecodingSettings(fields, _unmapped(generation))


def read_beam_search(generation: Mapping[str, Any]) -> DecodingSettings:
    """Convert settings of generation to those of beam search; the length penalty is another formula, so it is off."""
    fields: Fields = {"beam_size": generation.get("num_beams") or 1, "length_penalty": 0.0}
    if (length := generation.get("max_new_tokens") or generation.get("max_length")) is not None:
        fields["max_length"] = length
    if (length := generation.get("min_new_tokens")) is not None:
        fields["min_length"] = length
    return DecodingSettings(fields, _unmapped(generation))


def _unmapped(generation: Mapping[str, Any]) -> list[str]:
    """Return a line per foreign setting that has an effect and no equal of ours."""
    found = [name for name, neutral in _NEUTRAL.items() if generation.get(name, neutral) not in (neutral, None)]
    return [f"{name} = {generation[name]} is not carried over" + (f": {_REASONS[name]}" if name in _REASONS else "") for name in found]


def write_sampling(decoding: Mapping[str, Any]) -> DecodingSettings:
    """Convert the settings of a language model to those of generation.

    The number of new tokens is left to the caller of ``generate``: here text ends at the context window, there it would run past it.
    """
    fields: Fields = {"do_sample": decoding.get("temperature", 1.0) > 0}
    if fields["do_sample"]:
        fields |= {name: decoding[ours] for name, ours in _SAMPLING.items() if decoding.get(ours) is not None}
        fields.setdefault("top_k", 0)  # the library's own default is 50
    if decoding.get("min_new_tokens"):
        fields["min_new_tokens"] = decoding["min_new_tokens"]
    ours = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "early_exit_threshold": 1.0, "stop": []}
    notes = [f"decoding.{name} = {decoding[name]} is not carried over" for name, off in ours.items() if decoding.get(name, off) != off]
    return DecodingSettings(fields, notes)


def write_beam_search(decoding: Mapping[str, Any], max_seq_len: int) -> DecodingSettings:
    """Convert the settings of beam search to those of generation; the length penalty is another formula, so it is off."""
    fields: Fields = {
        "do_sample": False,
        "num_beams": decoding.get("beam_size", 5),
        "length_penalty": 0.0,
        "early_stopping": False,
        "max_new_tokens": min(decoding.get("max_length", 256), max_seq_len),
    }
    if decoding.get("min_length"):
        fields["min_new_tokens"] = decoding["min_length"]
    penalty = decoding.get("length_penalty", 0.6)
    note = f"decoding.length_penalty = {penalty:g} is not carried over: {_REASONS['length_penalty']}; length_penalty = 0 is written"
    return DecodingSettings(fields, [note] if penalty else [])
