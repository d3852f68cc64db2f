"""Roles of the special tokens of a tokenizer of the ``tokenizers`` library: their ids and the templates around texts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tokenizers

from transom.data.tokenizer.special_tokens import SpecialTokens, Template
from transom.errors import CheckpointError

ROLES = ("pad", "bos", "eos", "unk", "mask", "sep", "cls", "decoder_start")
"""Roles of special tokens; the id of each is ``ROLE_token_id``, its content ``ROLE_token``."""

_USUAL = {
    "pad": ("[PAD]", "<pad>", "<|padding|>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[SOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
    "unk": ("[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>"),
    "sep": ("[SEP]",),
    "cls": ("[CLS]",),
}
"""Usual contents of special tokens by role, in order of preference."""


def find_special_tokens(library: tokenizers.Tokenizer, state: Mapping[str, Any], given: Mapping[str, str | int | None]) -> SpecialTokens:
    """Return the special tokens of a tokenizer.

    A role that is not given is that of a token with a usual content, such as ``</s>``. GPT-2's ``<|endoftext|>`` also begins texts, and the
    decoder of an encoder-decoder without beginning token starts with padding, as in T5. The templates are those of the post-processor.

    Args:
        library: the tokenizer.
        state: its JSON state.
        given: roles that are known, such as ``{"eos_token": "</s>", "pad_token_id": 0}``. None for a role that no token has.

    Raises:
        CheckpointError: a role is unknown, or its token does not exist.
    """
    ids, explicit = dict[str, int | None](), set[str]()
    for name, token in given.items():
        role = name.removesuffix("_id").removesuffix("_token")
        if role not in ROLES or name not in (f"{role}_token", f"{role}_token_id"):
            raise CheckpointError(f"special tokens: expected roles {', '.join(f'{each}_token' for each in ROLES)}, found {name!r:.60}")
        number = library.token_to_id(token) if isinstance(token, str) else token
        if token is not None and (isinstance(number, bool) or not isinstance(number, int) or library.id_to_token(number) is None):
            raise CheckpointError(f"special tokens: expected a token of the vocabulary as {name}, found {token!r:.60}")
        ids[role] = number
        explicit.add(role)
    for role, contents in _USUAL.items():
        if role not in explicit:
            ids[role] = next((number for each in contents if (number := library.token_to_id(each)) is not None), None)
    if "unk" not in explicit:
        ids["unk"] = _unknown(library, state["model"])
    if "bos" not in explicit and ids["bos"] is None and library.token_to_id("<|endoftext|>") == ids["eos"]:
        ids["bos"] = ids["eos"]
    if "decoder_start" not in explicit and ids["bos"] is None and ids["cls"] is None:
        ids["decoder_start"] = ids["pad"]
    template = _template(library)
    ends = ids["eos"] if ids["eos"] is not None else ids["sep"]
    closes = ends is None or template.suffix[-1:] == (ends,)
    seq2seq = template if closes or ends is None else replace(template, suffix=(*template.suffix, ends))
    roles: dict[str, Any] = {f"{role}_token_id": number for role, number in ids.items()}
    return SpecialTokens(**roles, template=template, seq2seq=seq2seq)


def _unknown(library: tokenizers.Tokenizer, model: Mapping[str, Any]) -> int | None:
    """Return the unknown token of a model, which BPE with bytes never uses."""
    if model["type"] == "Unigram":
        return int(model["unk_id"])
    unknown: int | None = None if model.get("unk_token") is None else library.token_to_id(model["unk_token"])
    return unknown


def _template(library: tokenizers.Tokenizer) -> Template:
    """Return what the post-processor adds to one text and to two."""
    single, pair = library.encode("a"), library.encode("a", "a")
    if not any(each is not None for each in single.sequence_ids):
        return Template(tuple(single.ids))
    sides = [each for each in pair.sequence_ids if each is not None]
    starts = {side: pair.sequence_ids.index(side) for side in sides}
    ends = {side: len(pair) - pair.sequence_ids[::-1].index(side) for side in sides}
    first, last = single.sequence_ids.index(0), len(single) - single.sequence_ids[::-1].index(0)
    return Template(
        tuple(single.ids[:first]), tuple(single.ids[last:]), tuple(pair.ids[ends[0] : starts[1]]), int(pair.type_ids[starts[1]] > 0)
    )
