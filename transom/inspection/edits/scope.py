"""Put edits in force for every pass of a model inside a ``with`` block."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from transom.errors import ConfigError, TransomError
from transom.files.message import joined, phrase
from transom.inspection.edits.compile_edits import CompiledEdit, compile_edit, merge_edits
from transom.inspection.edits.files import load_edits, parse_edits
from transom.inspection.edits.references import References
from transom.inspection.edits.schemas import VERSION, EditConfig, describe_edit
from transom.models.base import Network


class EditNeverFiredError(TransomError):
    """An edit of a scope changed nothing, because no pass reached its sites or positions."""


@contextmanager
def error_place(place: str) -> Iterator[None]:
    """Begin the messages of errors with a place, such as a file."""
    try:
        yield
    except TransomError as error:
        raise type(error)(joined("", (f"{place}: ", error.line))) from None


class EditScope(AbstractContextManager["EditScope"]):
    """Edits in force for every pass of one model; scopes can be nested, and an inner one applies after the outer ones.

    Passes of the model in other threads are edited too. Other models are not.

    Attributes:
        edits: the edits, in the order in which they apply.
    """

    def __init__(self, network: Network, edits: Sequence[EditConfig], references: References) -> None:
        """Compile ``edits`` for ``network``; reference texts run now, without edits."""
        self._network, self.edits = network, tuple(edits)
        self._compiled: list[CompiledEdit] = []
        for number, each in enumerate(edits):
            with error_place(f"edits.{number}"):
                self._compiled.append(compile_edit(each, network, references))
        self._outer: Any = None
        self._in_force = False

    @property
    def fired(self) -> tuple[int, ...]:
        """Number of tensors that each edit has changed since the scope was entered last."""
        return tuple(each.counter.n for each in self._compiled)

    def __enter__(self) -> Self:
        """Put the edits in force, after those of outer scopes, and count from 0.

        Raises:
            ConfigError: the scope is in force already.
        """
        if self._in_force:
            raise ConfigError("edits: expected a scope that is not in force, found one inside itself; make another scope")
        self._outer, self._in_force = self._network.edits, True
        merged = self._outer or {}
        for each in self._compiled:
            each.counter.reset()
            merged = merge_edits(merged, each.sites)
        self._network.edits = merged
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the edits of the outer scope.

        Raises:
            EditNeverFiredError: an edit changed nothing, and no exception is under way.
        """
        self._network.edits, self._in_force = self._outer, False
        if kind is None:
            self.require_fired()

    def require_fired(self) -> None:
        """Raise if an edit has changed nothing.

        Raises:
            EditNeverFiredError: the message names the edit and the reason.
        """
        for number, each in enumerate(self._compiled):
            if not each.counter.n:
                values = {"number": str(number), "edit": describe_edit(each.config), "reason": _reason(each, self._network)}
                english = "edit {number} ({edit}): expected a change, found none: {reason}"
                raise EditNeverFiredError(phrase("errors.never_fired", english, **values))


def _reason(edit: CompiledEdit, network: Network) -> str:
    """Return why an edit changed nothing."""
    address, longest = next(iter(edit.sites)), edit.counter.longest
    if longest:
        wanted = {name: indices for name in ("positions", "queries", "keys") if (indices := getattr(edit.config, name, None))}
        places: Sequence[str] = [f"{name} {' '.join(map(str, indices))}" for name, indices in wanted.items()]
        if len(places) == 2:
            places = [phrase("errors.both", "{first} and {second}", first=places[0], second=places[1])]
        return phrase(
            "errors.no_row",
            "no row has {places}, since the longest has {longest} positions, counted from 0",
            places=places[0],
            longest=longest,
        )
    if ".experts." in address:
        return phrase(
            "errors.no_token_for_expert", "no token was sent to the expert of {address}; choose another expert or text", address=address
        )
    block = re.match(r".*\.blocks\.\d+", address)
    if block is not None and getattr(network.get_submodule(block[0]), "depth", None) is not None:
        return phrase(
            "errors.not_selected",
            "no pass reached {address}, whose block processes only the tokens that its router selects; choose another text or block",
            address=address,
        )
    return phrase("errors.not_reached", "no pass reached {address}; run the model inside the with block", address=address)


def edits(
    model: Any, edits: str | Path | Sequence[EditConfig | Mapping[str, Any]], *, inputs: Mapping[str, Any] | None = None
) -> EditScope:
    """Change what a model computes: return a context manager that puts edits in force for every pass of the model.

    Predictions, scores, generation and traces inside the ``with`` block are those of the edited model. Generation then reads the whole
    text in every step, without a cache. On leaving, an edit that changed nothing is an error.

    Args:
        model: a run loaded by ``transom.load``, or a model, compiled or not.
        edits: a JSON file, or edits: objects of ``transom.inspection.edits.schemas``, or dictionaries as in a file.
        inputs: batch or tensor by name, for models without a tokenizer: a text of an edit may be such a name.

    Raises:
        ConfigError: the model has no such block, head or tensor.
        EditFileError: a file or dictionary does not match the schema.
        EditNeverFiredError: (on leaving) an edit changed nothing.
    """
    given = getattr(model, "model", model)
    network = getattr(given, "_orig_mod", given)  # of a compiled model
    if not isinstance(network, Network):
        raise ConfigError(f"expected a run or a model of transom, found {type(network).__name__}; load one with transom.load")
    if isinstance(edits, str | Path):
        configs: Sequence[EditConfig] = load_edits(edits)
    else:
        listed = [each.model_dump() if isinstance(each, EditConfig) else each for each in edits]
        configs = parse_edits({"version": VERSION, "edits": listed})
    references = References(None if given is model else model, network, inputs)
    with error_place(str(edits)) if isinstance(edits, str | Path) else nullcontext():
        return EditScope(network, configs, references)
