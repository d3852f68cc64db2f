"""Names by which the lines that a page copies read uploaded files, samples of the validation data, and edits."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transom.inspection.edits.files import dump_edits
from transom.serving.requests import PassRequest
from transom.serving.served_model import InputFile


class Copied(NamedTuple):
    """Names that copied lines read.

    Attributes:
        file: name of the uploaded picture or sound; empty without one.
        sample: name of the sample of the validation data; empty without one.
        edits: the edits; a patch from a picture or sound has the name of its file or sample as ``text``.
        samples: names of the samples from which patches take their values.
    """

    file: str
    sample: str
    edits: list[dict[str, Any]]
    samples: list[str]


def copied(request: PassRequest, files: Mapping[str, InputFile]) -> Copied:
    """Return how copied lines name the files and edits of a request."""
    own = files.get(request.input.file or "")
    edits: list[dict[str, Any]] = dump_edits(request.edits)["edits"]
    named, samples = list[dict[str, Any]](), list[str]()
    for edit in edits:
        other = files.get(edit.get("text", ""))
        if other is not None and other.sample:
            samples.append(other.sample)
        named.append(edit if other is None else edit | {"text": other.sample or other.name})
    return Copied("" if own is None else own.name, "" if own is None else own.sample, named, list(dict.fromkeys(samples)))
