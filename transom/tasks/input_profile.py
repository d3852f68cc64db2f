"""Reads the profile of a run's training inputs."""

from pathlib import Path

from transom.checkpoints.run_files import INPUT_PROFILE
from transom.checkpoints.run_folder import RunFolder
from transom.data.text.input_profile import InputProfile
from transom.errors import CheckpointError
from transom.files.safe_read import read_json


def read_input_profile(run: Path) -> InputProfile | None:
    """Return the profile of a run's training inputs; None for run folders of early versions, which have none.

    Raises:
        CheckpointError: the profile is damaged.
    """
    path = RunFolder.open(run).path / INPUT_PROFILE
    if not path.exists():
        return None
    value = read_json(path)
    try:
        return InputProfile.from_json(value)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged: {error}; remove the file to predict without warnings about inputs") from error
