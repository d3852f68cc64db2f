"""Tensors of an edited pass before and after each edit (``transom.edits``), for lines that show what an edit changes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from transom.inspection.edits.changes import AttentionChange, AttentionEdit, Counter, ResidualEdit, ValueEdit
from transom.inspection.edits.schemas import EditConfig, describe_edit
from transom.inspection.messages.tables import message
from transom.layers.observe import SiteEdit, Visit
from transom.models.base import Network

MAX_TEXT = 192
"""Characters of the description of an edit; a longer one, with many values, is cut."""


class EditedSite(NamedTuple):
    """Effect of one edit on the tensor of a site.

    Attributes:
        edit: the edit.
        before: the tensor before the edit.
        after: the tensor after it.
    """

    edit: SiteEdit
    before: Tensor
    after: Tensor

    @property
    def configs(self) -> list[EditConfig]:
        """The edits as they were given; several of the weights of one attention layer are one change."""
        if isinstance(self.edit, AttentionEdit):
            return configs_of(self.edit.changes)
        return configs_of([self.edit]) if isinstance(self.edit, ValueEdit | ResidualEdit) else []


def configs_of(changes: Sequence[AttentionChange | ValueEdit | ResidualEdit]) -> list[EditConfig]:
    """Return the edits from which changes of a pass were compiled."""
    counters: list[Counter] = [each.counter for each in changes]
    return [counter.config for counter in counters if counter.config is not None]


def edited_text(configs: Sequence[EditConfig]) -> str:
    """Return the line that shows edits, such as ``edited: scale, name z, factor 2.0``."""
    described = "; ".join(map(describe_edit, configs))
    return message("explain.edits.edited", edits=described if len(described) <= MAX_TEXT else f"{described[: MAX_TEXT - 4]} ...")


@dataclass(frozen=True, eq=False)
class _Watched:
    """An edit that keeps the tensor before and after it at every visit of its site."""

    edit: SiteEdit
    visits: list[EditedSite] = field(default_factory=list)

    @property
    def reads(self) -> tuple[str, ...]:
        """Addresses that the edit reads."""
        return self.edit.reads

    def apply(self, x: Tensor, visit: Visit) -> Tensor:
        """Apply the edit."""
        after = self.edit.apply(x, visit)
        self.visits.append(EditedSite(self.edit, x, after))
        return after


class EditedSites:
    """The edits of a model in the order in which they apply at each site, and the tensors around them in the latest pass.

    Attributes:
        watched: edits by address.
    """

    def __init__(self, edits: Mapping[str, Sequence[SiteEdit]] | None) -> None:
        """Prepare to watch the edits that are in force; None for none."""
        self.watched = {address: [_Watched(each) for each in every] for address, every in (edits or {}).items()}

    @contextmanager
    def watch(self, network: Network) -> Iterator[None]:
        """Keep what the edits of ``network`` do in the passes inside the ``with`` block."""
        before = network.edits
        network.edits = self.watched or None
        try:
            yield
        finally:
            network.edits = before

    def at(self, address: str, step: int | None = None) -> list[EditedSite]:
        """Return what each edit did at a site; empty if none reached it.

        Args:
            address: address of the site.
            step: time step of a loop that visits the site once per step; None for the latest visit.
        """
        return [each.visits[-1 if step is None else step] for each in self.watched.get(address, ()) if each.visits]

    def configs(self) -> list[EditConfig]:
        """Return all edits that are in force, each once."""
        sites = [EditedSite(each.edit, Tensor(), Tensor()) for every in self.watched.values() for each in every]
        found = list[EditConfig]()
        for site in sites:
            found += [config for config in site.configs if not any(config is other for other in found)]
        return found
