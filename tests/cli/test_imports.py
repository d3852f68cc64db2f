"""The collector stands aside while a verb imports, and works again afterwards, whatever happens."""

import gc

import pytest

from transom.cli.imports import lasting_imports


def test_the_collector_stands_aside_and_comes_back() -> None:
    with lasting_imports():
        assert not gc.isenabled()
        kept = [object()]
    assert gc.isenabled() and gc.get_freeze_count() > 0 and kept
    with pytest.raises(ImportError), lasting_imports():
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()
