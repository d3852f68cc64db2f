"""Reading the pairs of a recipe's data section."""

from pathlib import Path

import pytest

from transom.config.data import PairDataConfig, PairFilesConfig, PhrasebookConfig, SequenceTaskConfig
from transom.data.pairs.datasets import load_translation_data
from transom.errors import DataError


def files(folder: Path, name: str, n: int) -> PairFilesConfig:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.tsv").write_text("".join(f"{name} {i}\t{i} {name}\n" for i in range(n)))
    return PairFilesConfig(pairs=f"{name}.tsv")


def test_files_under_the_root(tmp_path: Path) -> None:
    data = PairDataConfig(root="texts", train=files(tmp_path / "texts", "train", 30), valid=files(tmp_path / "texts", "valid", 4))
    splits = load_translation_data(data, tmp_path)
    assert (len(splits.train), splits.train.source[29], splits.train.target[29]) == (30, "train 29", "29 train")
    assert splits.valid.source == ["valid 0", "valid 1", "valid 2", "valid 3"]
    assert splits.test is None
    with pytest.raises(DataError, match="no such file"):
        load_translation_data(data, tmp_path / "elsewhere")


def test_a_test_set_is_read_for_the_report(tmp_path: Path) -> None:
    data = PairDataConfig(root=str(tmp_path), train=files(tmp_path, "train", 300), test=files(tmp_path, "test", 5))
    test = load_translation_data(data, Path("/nowhere")).test
    assert test is not None and test.source[4] == "test 4"
    with pytest.raises(ValueError, match=r"remove data\.test"):
        PairDataConfig(generate=PhrasebookConfig(), test=PairFilesConfig(pairs="test.tsv"))


def test_validation_is_split_off_by_hash(tmp_path: Path) -> None:
    splits = load_translation_data(PairDataConfig(root=str(tmp_path), train=files(tmp_path, "all", 1000)), Path("/nowhere"))
    assert 1 <= len(splits.valid) <= 30 and len(splits.train) + len(splits.valid) == 1000
    assert splits.valid.name == f"{len(splits.valid)} of 1000 pairs of {tmp_path}/all.tsv, held out"
    assert splits.valid.source[0] == f"all {splits.valid.line_number(0) - 1}"


@pytest.mark.parametrize(
    "config", [PhrasebookConfig(n_train=100, n_valid=10, n_test=10), SequenceTaskConfig(kind="reverse", n_train=100, n_valid=10, n_test=10)]
)
def test_generated(config: PhrasebookConfig | SequenceTaskConfig) -> None:
    splits = load_translation_data(PairDataConfig(generate=config), Path())
    assert splits.test is not None
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (100, 10, 10)
    assert splits.train.source == load_translation_data(PairDataConfig(generate=config), Path()).train.source
