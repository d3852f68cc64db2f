"""Packaged recipes and presets; this module does not import pydantic, which keeps ``--help`` fast."""

from importlib import resources


def packaged_recipes() -> dict[str, str]:
    """Return the TOML text of each packaged recipe, by name."""
    return _packaged("recipes")


def packaged_presets() -> dict[str, str]:
    """Return the TOML text of each packaged preset (a published architecture), by name."""
    return _packaged("presets")


def _packaged(folder: str) -> dict[str, str]:
    files = (resources.files("transom") / folder).iterdir()
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in sorted(files, key=str) if file.name.endswith(".toml")}
