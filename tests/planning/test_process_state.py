"""A training's settings hold while it runs, yield to the user's, and go when it ends."""

import os

import pytest
import torch

from transom.planning.process_state import ONEDNN_ENVIRONMENT, environment_defaults, preserved_process_state

(KERNEL_LIMIT,) = ONEDNN_ENVIRONMENT


def test_settings_end_with_the_training_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KERNEL_LIMIT, raising=False)
    torch.manual_seed(5)
    before = (torch.get_num_threads(), dict(os.environ), torch.get_rng_state().tolist())
    with pytest.raises(ZeroDivisionError), preserved_process_state():
        assert os.environ[KERNEL_LIMIT] == "4096"
        torch.manual_seed(1)
        torch.set_num_threads(3)
        raise ZeroDivisionError
    assert (torch.get_num_threads(), dict(os.environ), torch.get_rng_state().tolist()) == before


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "theirs")
    monkeypatch.delenv("FREE", raising=False)
    with environment_defaults({"OURS": "ours", "FREE": "ours"}):
        assert (os.environ["OURS"], os.environ["FREE"]) == ("theirs", "ours")
        os.environ |= {"OURS": "changed by an import", "NEW": "set by an import"}
    assert os.environ["OURS"] == "theirs" and not {"FREE", "NEW"} & os.environ.keys()
