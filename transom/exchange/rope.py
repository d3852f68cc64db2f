"""Rotary positions: the library's ``rope_parameters``, and the fields ``rope_theta`` and ``rope_scaling`` of earlier versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transom.errors import CheckpointError
from transom.exchange.config_rows import Fields

_RENAMED = {"original_max_position_embeddings": "original_max_seq_len"}
_SCALING = "position.rope_scaling."
_KINDS = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "su": "longrope",
}


@dataclass(frozen=True)
class RotaryRow:
    """Base, rotated fraction and scaling of rotary positions.

    Attributes:
        theta: default of the base.
        fraction: default of the rotated fraction of a head.
        theta_name: name of the base in earlier versions.
        fraction_name: name of the fraction in earlier versions; empty if the family rotates whole heads.
    """

    theta: float = 10000.0
    fraction: float = 1.0
    theta_name: str = "rope_theta"
    fraction_name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return ("rope_parameters", "rope_scaling", self.theta_name, *filter(None, [self.fraction_name]))

    def read(self, foreign: Mapping[str, Any]) -> Fields:
        """Return our fields of positions.

        Raises:
            CheckpointError: the scaling is of an unknown kind, or no table.
        """
        own = {name: foreign.get(name) for name in ("rope_parameters", "rope_scaling")}
        if wrong := [name for name, value in own.items() if not isinstance(value, dict | None)]:
            raise CheckpointError(f"config.json: {wrong[0]}: expected a table, found {own[wrong[0]]!r:.80}")
        found: dict[str, Any] = dict(own["rope_parameters"] or own["rope_scaling"] or {})
        kind = found.pop("rope_type", found.pop("type", "default"))
        found.pop("type", None)
        fields: Fields = {
            "position.kind": "rotary",
            "position.rope_theta": found.pop("rope_theta", foreign.get(self.theta_name, self.theta)),
            "position.partial_rotary_factor": found.pop("partial_rotary_factor", foreign.get(self.fraction_name, self.fraction)),
        }
        if not isinstance(kind, str) or kind not in _KINDS:
            raise CheckpointError(
                f"config.json: rope_parameters: rope_type: expected one of {', '.join(_KINDS)}, found {kind!r:.80}; transom cannot express"
                " it"
            )
        if kind == "default":
            return fields
        scaling = {_RENAMED.get(name, name): value for name, value in found.items() if value is not None}
        if kind == "dynamic":
            scaling.setdefault("original_max_seq_len", foreign.get("max_position_embeddings"))
        return fields | {f"{_SCALING}kind": _KINDS[kind]} | {_SCALING + name: value for name, value in scaling.items()}

    def write(self, ours: Mapping[str, Any]) -> Fields:
        """Return ``rope_parameters``; of a scaling that the library lacks, only the base, which a comparison reveals."""
        kind = ours.get(f"{_SCALING}kind", "none")
        parameters: Fields = {"rope_type": "default", "rope_theta": ours.get("position.rope_theta", self.theta)}
        if self.fraction_name:
            parameters["partial_rotary_factor"] = ours.get("position.partial_rotary_factor", self.fraction)
        if kind != "none" and kind in _KINDS.values():
            back = {ours_name: name for name, ours_name in _RENAMED.items()}
            scaling = {name.removeprefix(_SCALING): value for name, value in ours.items() if name.startswith(_SCALING)}
            parameters |= {back.get(name, name): value for name, value in scaling.items() if name != "kind" and value is not None}
            parameters["rope_type"] = kind
        return {"rope_parameters": parameters}
