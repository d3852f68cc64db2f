"""Plugins: external files and installed modules that register components or tasks when they are imported.

A plugin runs only if the user names it, on the command line (``--plugin``) or in a call (``plugins=[...]``), never because a recipe or a
run folder names it. A run records the name and hash of each plugin that it uses, and is loaded only if a plugin with that hash is imported.
"""

import hashlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from transom.config.component_registry import registered_builder
from transom.config.schema import SLOTS, Schema, kinds, split_docstring
from transom.config.suggestions import suggest
from transom.config.task_registry import recipes_by_task, registered_recipes
from transom.errors import ConfigError
from transom.files.limits import MAX_PLUGIN_BYTES
from transom.files.regular_files import read_regular_file, resolve_path

GROUP = "transom.plugins"
"""Entry point group of the plugins of installed packages."""


class PluginRecord(Schema):
    """Name and SHA-256 of a plugin, as recorded in ``config.json`` of a run."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Plugin(NamedTuple):
    """An imported plugin.

    Attributes:
        where: absolute path of a file, or dotted name of a module.
        home: folder from which the module is imported; empty for a file.
        record: name and hash of the plugin.
        schemas: schema classes of the components and tasks that the plugin registered.
    """

    where: str
    home: str
    record: PluginRecord
    schemas: tuple[type[Schema], ...]


class InstalledPlugin(NamedTuple):
    """A plugin of an installed package, not necessarily imported.

    Attributes:
        name: name for ``--plugin``.
        module: dotted name of its module.
        package: name and version of the package.
    """

    name: str
    module: str
    package: str


_PLUGINS: dict[str, Plugin] = {}
"""Plugins imported by this process, by ``where``."""


def installed_plugins() -> list[InstalledPlugin]:
    """List the plugins of installed packages from the packages' metadata, without importing the plugins."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.module))
    return [InstalledPlugin(point.name, point.module, f"{point.dist.name} {point.dist.version}" if point.dist else "") for point in points]


def import_plugins(named: Iterable[str | Path]) -> list[Plugin]:
    """Import plugins, each once per process.

    Args:
        named: for each plugin, a Python file, an installed plugin's name (see ``installed_plugins``), or a module's dotted name.

    Raises:
        ConfigError: the plugin does not exist, cannot be imported, registers nothing or a taken name, or its file changed since this
            process imported it.
    """
    return [_import_plugin(str(each)) for each in named]


def _import_plugin(named: str) -> Plugin:
    is_file = named.endswith(".py") or "/" in named
    where = str(resolve_path(Path(named))) if is_file else _module_name(named)
    path = Path(where) if is_file else _module_path(named, where)
    if path.suffix != ".py" or not path.exists():
        found = "another file" if path.exists() else "no such file"
        raise ConfigError(f"plugin {named}: expected a .py file, found {found}; correct the path")
    content = read_regular_file(path, MAX_PLUGIN_BYTES, "a Python file", ConfigError)
    record = PluginRecord(name=path.name if is_file else where, sha256=hashlib.sha256(content).hexdigest())
    if (known := _PLUGINS.get(where)) is not None:
        if known.record != record:
            raise ConfigError(f"plugin {named}: the file changed since this process imported it; start a new process")
        return known
    recipes_by_task()  # registers the package's own slots and components first
    before = _registered()
    with _Import(named, path):
        name = _run_file(path, content, record.sha256).__name__ if is_file else import_module(where).__name__
    here = [schema for schema in _registered() if schema not in before or f"{schema.__module__}.".startswith(f"{name}.")]
    new = tuple(
        schema for schema in here if not schema.__module__.startswith("transom.")
    )  # exclude the package's own components, imported by the plugin
    if not new:
        raise ConfigError(f"plugin {named}: expected the file to register a component or task, found none; see docs/extending.md")
    depth = where.count(".") + (path.name == "__init__.py")
    home = "" if is_file else str(path.absolute().parents[depth])
    return _PLUGINS.setdefault(where, Plugin(where, home, record, new))


def _module_name(named: str) -> str:
    """Return the module of the installed plugin ``named``; if there is none, ``named`` itself as the name of a module."""
    return next((plugin.module for plugin in installed_plugins() if plugin.name == named), named)


def _module_path(named: str, module: str) -> Path:
    """Return the path of a module's file; the parent packages of the module are imported to find it."""
    found, parts = None, module.split(".")
    if all(part.isidentifier() for part in parts):
        with _Import(named, Path(module)):
            packages = (".".join(parts[:n]) for n in range(1, len(parts)))
            found = find_spec(module) if all(map(find_spec, packages)) else None
    if found is None or not str(found.origin).endswith(".py"):
        known = [plugin.name for plugin in installed_plugins()]
        advice = suggest(named, known) if known else "no installed package has plugins"
        raise ConfigError(f"plugin {named}: expected a .py file, an installed plugin or a Python module, found nothing; {advice}")
    return Path(str(found.origin))


def _run_file(path: Path, content: bytes, sha256: str) -> ModuleType:
    """Execute ``content`` as a module; its name consists of hash and file name, so it is the same in every process."""
    name = f"transom_plugin_{sha256[:12]}_{path.stem}".replace(".", "_")
    spec = spec_from_file_location(name, path)
    assert spec is not None, "the path of a plugin ends in .py"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        exec(compile(content, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Import:
    """Context manager that converts any error in the import of a plugin to a ConfigError with the plugin's line."""

    def __init__(self, named: str, path: Path) -> None:
        self._named, self._path = named, path

    def __enter__(self) -> None:
        """Do nothing: errors are converted on exit."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raise a ConfigError for any exception of the import except interrupts."""
        if isinstance(error, Exception | SystemExit):
            at = [frame.lineno for frame in traceback.extract_tb(trace) if frame.filename == str(self._path)]
            line = error.lineno if isinstance(error, SyntaxError) else at[-1] if at else None
            told = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"plugin {self._named}{f', line {line}' if line else ''}: {told}; fix the plugin") from error


def plugin_in_traceback(error: BaseException) -> str | None:
    """Return the plugin, and its line, in which an error occurred, such as "plugin mine.py, line 3".

    Of several plugins in the traceback, the innermost is returned; None if the traceback contains no plugin.
    """
    names = {where if where.endswith(".py") else sys.modules[where].__file__: plugin.record.name for where, plugin in _PLUGINS.items()}
    frames = traceback.extract_tb(error.__traceback__)
    at = [f"plugin {names[frame.filename]}, line {frame.lineno}" for frame in frames if frame.filename in names]
    return at[-1] if at else None


def plugin_names() -> list[str]:
    """List the names of the imported plugins."""
    return [plugin.record.name for plugin in _PLUGINS.values()]


def _registered() -> dict[type[Schema], None]:
    """Return the schema classes of all registered components, then of all registered tasks, as the keys of a dictionary."""
    components = [schema for slot in SLOTS.values() for schema in slot.choices]
    return dict.fromkeys([*components, *registered_recipes()])


def describe_plugins() -> list[str]:
    """Return a line per component or task that an imported plugin registers: plugin, name in recipes, first part of the docstring."""
    return [f"{plugin.record.name}: {_named(schema)}" for plugin in _PLUGINS.values() for schema in plugin.schemas]


def _named(schema: type[Schema]) -> str:
    slots = [slot.name for slot in SLOTS.values() if schema in slot.choices]
    spelled = " or ".join(map(repr, kinds(schema) or (schema.model_fields["task"].default,)))
    return f"{' and '.join(slots) or 'task'} = {spelled}. {split_docstring(schema)[0]}"


def plugins_of(config: Schema) -> list[Plugin]:
    """List the imported plugins whose components or task a configuration uses."""
    used = set(_schemas_in(config))
    return [plugin for plugin in _PLUGINS.values() if not used.isdisjoint(plugin.schemas)]


def _schemas_in(value: Any) -> Iterator[type[Schema]]:
    if isinstance(value, Schema):
        yield type(value)
        value = tuple(getattr(value, name) for name in type(value).model_fields)
    if isinstance(value, tuple):
        for each in value:
            yield from _schemas_in(each)


def require_plugins(records: Sequence[PluginRecord], run: str) -> None:
    """Raise an error if a run needs a plugin that is not imported or has changed.

    Args:
        records: the plugins that the run was trained with.
        run: the run folder, for the error message.

    Raises:
        ConfigError: a plugin is not imported, or has another hash.
    """
    named = [plugin.record for plugin in _PLUGINS.values()]
    hashes = {record.sha256: record for record in named}
    for record in (record for record in records if record.sha256 not in hashes):
        other = next((each for each in named if each.name == record.name), None)
        if other is not None:
            raise ConfigError(
                f"{run}: expected plugin {record.name} with SHA-256 {record.sha256[:12]}, with which the run was trained,"
                f" found SHA-256 {other.sha256[:12]}: the plugin has changed; restore its file, or train again"
            )
        raise ConfigError(
            f"{run}: expected plugin {record.name} (SHA-256 {record.sha256[:12]}), found no such plugin; if you"
            f" trust the file, add --plugin {record.name} with its path (in Python plugins=[...])"
        )


def plugin_component(plugin: Plugin, name: str) -> type[Schema]:
    """Find a plugin's component by the name of its schema class or builder.

    Raises:
        ConfigError: the plugin registers no such component.
    """
    components = [schema for schema in plugin.schemas if kinds(schema)]
    for schema in components:
        if name in (schema.__name__, getattr(registered_builder(schema), "__name__", None)):
            return schema
    known = [schema.__name__ for schema in components]
    raise ConfigError(
        f"plugin {plugin.record.name}: expected a component that the plugin registers, found {name!r}; {suggest(name, known)}"
    )
