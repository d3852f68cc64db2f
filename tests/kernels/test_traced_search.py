"""The native decoder's probabilities beside those of a traced pass."""

from pathlib import Path

import pytest

import transom
from tests.inspection.test_decoding_trace import runs, searched
from tests.kernels.test_native_decoder import needs_library

__all__ = ["runs"]


@needs_library
@pytest.mark.kernels
@pytest.mark.long
@pytest.mark.parametrize("name", ["language", "translation"])
def test_a_search_is_certified_and_reported_in_int8(runs: dict[str, Path], name: str) -> None:
    for precision in ("fp32", "bf16", "int8"):
        search, _, certificate = searched(transom.load(runs[name], precision), name)  # type: ignore[arg-type]
        assert search.decoder == precision and (certificate.bound is None) == (precision == "int8")
        assert 0 < certificate.difference < (1e-4 if precision == "fp32" else 0.3)
        certificate.check()
