"""Recipes and presets that come with the package; this module needs no pydantic, so that ``--help`` answers at once."""

from importlib import resources


def packaged_recipes() -> dict[str, str]:
    """Read the complete training recipes that come with the package: name to TOML text."""
    return _packaged("recipes")


def packaged_presets() -> dict[str, str]:
    """Read the published architectures that come with the package: name to TOML text."""
    return _packaged("presets")


def _packaged(folder: str) -> dict[str, str]:
    files = (resources.files("transom") / folder).iterdir()
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in sorted(files, key=str) if file.name.endswith(".toml")}
