"""The rules of the architecture, proved from the source: which package may import which, and what no file may hold."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.size import FAIL, ROOT, lines_of_files
from transom.cli.commands import all_commands
from transom.config.schema import Schema, allowed_schemas
from transom.config.task_registry import recipes_by_task

PACKAGES = (
    "errors",
    "files",
    "config",
    "presets",
    "recipes",
    "data",
    "layers",
    "kernels",
    "models",
    "planning",
    "checkpoints",
    "exchange",
    "parallel",
    "decoding",
    "training",
    "inspection",
    "tasks",
    "serving",
    "lab",
    "sklearn",
    "lm_eval",
    "cli",
)
"""In the order in which data passes through them; a package imports from those above it only."""

MODEL_PACKAGES = ("layers", "models")
LONGEST_FUNCTION = 60
"""Lines of code, the docstring not counted."""
NETWORK = ("requests", "urllib.request", "urllib3", "http", "httpx", "aiohttp", "ftplib", "smtplib", "socket", "huggingface_hub")
PICKLE = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
PICKLING_CALLS = {"torch.save", "torch.load", "numpy.save", "numpy.load", "np.load", "np.save"}


@cache
def trees(folder: str) -> dict[Path, ast.Module]:
    """Parse every file below a folder of the project, when a test first asks: it takes seconds, and every session imports this module."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / folder).rglob("*.py"))}


def place(path: Path, node: ast.AST | None = None) -> str:
    """Name a file, or a line of it, from the project's root."""
    line = f":{node.lineno}" if isinstance(node, ast.stmt | ast.expr | ast.ExceptHandler) else ""
    return f"{path.relative_to(ROOT)}{line}"


def package_of(path: Path) -> str:
    """Return the subpackage of a module; those directly in ``transom`` are "top"."""
    name = path.relative_to(ROOT / "transom").parts[0].removesuffix(".py")
    return "top" if name in ("__init__", "__main__") else name


def imports(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Give each imported module by its full name, ``from a import b`` as both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node, str(node.module)
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def is_in(module: str, packages: tuple[str, ...] | set[str]) -> bool:
    """Tell whether a module is one of the packages or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def offenders(packages: tuple[str, ...], forbidden: tuple[str, ...]) -> list[str]:
    """List the imports of forbidden packages in these subpackages."""
    return [
        f"{place(path, node)} imports {module}"
        for path, tree in trees("transom").items()
        if package_of(path) in packages
        for node, module in imports(tree)
        if is_in(module, forbidden)
    ]


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Give each call with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_every_file_is_in_a_known_room() -> None:
    assert {package_of(path) for path in trees("transom")} <= {*PACKAGES, "top"}


def test_rooms_import_only_rooms_above() -> None:
    wrong = []
    for path, tree in trees("transom").items():
        package = package_of(path)
        below_cli = path.name == "__init__.py"  # what ``import transom`` is for, without its command line
        above = (PACKAGES[:-1] if below_cli else PACKAGES) if package == "top" else PACKAGES[: PACKAGES.index(package) + 1]
        for node, module in imports(tree):
            if module.startswith("transom.") and module.split(".")[1] not in (*above, "__version__"):
                wrong.append(f"{place(path, node)} ({package}) imports {module}")
    assert not wrong


def test_modules_imported_by_name_are_the_named_exceptions() -> None:
    """A name that is put together while running is hidden from the test above: these are all, and each is deliberate."""
    named = {
        (path.relative_to(ROOT / "transom").as_posix(), ast.unparse(call.args[0]))
        for path, tree in trees("transom").items()
        for call, name in calls(tree)
        if name in ("import_module", "importlib.import_module", "__import__")
    }
    found = {file for file, module in named if not module.startswith(("'torch.", "'sklearn."))}
    commands_and_api = {"__init__.py", "cli/commands.py"}
    schemas_of_tasks = {"config/task_registry.py"}
    classes_that_recipes_name = {"tasks/task.py", "training/rank_process.py"}
    layers_that_schemas_name = {"config/component_registry.py"}
    plugins_that_people_name = {"config/plugins.py"}
    drawings_of_results = {"decoding/predictors/results.py"}
    tables_of_families = {"exchange/family.py"}
    expected = commands_and_api | schemas_of_tasks | classes_that_recipes_name | layers_that_schemas_name | plugins_that_people_name
    expected |= drawings_of_results | tables_of_families
    assert found - {"layers/dispatch.py"} == expected


def test_only_the_dispatch_table_loads_the_kernels_by_name() -> None:
    named = sorted(
        (path.relative_to(ROOT / "transom").as_posix(), node.value)
        for path, tree in trees("transom").items()
        if package_of(path) != "kernels"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("transom.kernels")
    )
    assert named == [("layers/dispatch.py", "transom.kernels"), ("layers/dispatch.py", "transom.kernels.kernel_registry")]
    assert not offenders(tuple(package for package in (*PACKAGES, "top") if package != "kernels"), ("transom.kernels",))


def test_layers_and_models_know_one_device_and_no_files() -> None:
    assert not offenders(MODEL_PACKAGES, ("transom.data", "transom.checkpoints", "torch.distributed", "os", "pathlib", "io"))


def test_only_parallel_imports_torch_distributed() -> None:
    assert not offenders(tuple(package for package in (*PACKAGES, "top") if package != "parallel"), ("torch.distributed",))


def test_config_imports_no_torch() -> None:
    assert not offenders(("errors", "files", "config"), ("torch", "numpy", "jaxtyping", "tokenizers"))


def modules_at_start(names: Iterator[str] | list[str]) -> set[str]:
    """List every module that importing these brings in, followed through the package's own top-level imports."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree for path, tree in trees("transom").items()
    }
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            tops = files[name].body if name in files else []
            waiting += [module for top in tops if isinstance(top, ast.Import | ast.ImportFrom) for _, module in imports(top)]
    return seen


def test_commands_import_the_engine_only_when_they_run() -> None:
    started = modules_at_start(["transom", "transom.__main__", *(f"transom.cli.{command.replace('-', '_')}" for command in all_commands())])
    heavy = ("torch", "pydantic", "numpy", "tokenizers", "safetensors", "sacrebleu", "matplotlib", "jaxtyping")
    assert not {module for module in started if is_in(module, heavy)}
    assert "transom.config.recipe" not in modules_at_start(["transom.__main__"])


def test_schemas_of_tasks_import_no_torch() -> None:
    allowed_schemas = sorted((ROOT / "transom" / "tasks").glob("*/schema.py"))
    started = modules_at_start([".".join(path.relative_to(ROOT).with_suffix("").parts) for path in allowed_schemas])
    assert len(allowed_schemas) > 5 and "pydantic" in started
    assert not {module for module in started if is_in(module, ("torch", "numpy", "jaxtyping", "tokenizers"))}


def test_no_rooms_for_odds_and_ends() -> None:
    odd = re.compile(r"(util|utils|common|helper|helpers|misc|tools)(_.*|)$")
    assert not [
        place(path)
        for path in (*trees("transom"), *trees("tests"))
        for part in path.relative_to(ROOT).with_suffix("").parts
        if odd.match(part)
    ]


def test_packages_hold_a_docstring_only() -> None:
    inits = [(path, tree) for path, tree in trees("transom").items() if path.name == "__init__.py" and package_of(path) != "top"]
    assert not [place(path) for path, tree in inits if len(tree.body) != 1 or ast.get_docstring(tree) is None]
    folders = {path.parent for path in trees("transom")}
    assert not [place(folder) for folder in folders if not (folder / "__init__.py").is_file()]


def swallows_everything(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler catches every error and does not raise it again after cleaning up."""
    names = {"BaseException"} if handler.type is None else {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    last = handler.body[-1]
    return bool(names & {"Exception", "BaseException"}) and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_the_outermost_function_catches_everything() -> None:
    handlers = [(path, node) for path, tree in trees("transom").items() for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    found = [path.relative_to(ROOT).as_posix() for path, node in handlers if swallows_everything(node)]
    assert found == ["transom/cli/main.py", "transom/parallel/processes/local_ranks.py"], "of the command, and of a process for a rank"


@pytest.mark.parametrize("folder", ["transom", "tests"])
def test_no_pickle(folder: str) -> None:
    wrong = [
        f"{place(path, node)} imports {module}"
        for path, tree in trees(folder).items()
        for node, module in imports(tree)
        if is_in(module, PICKLE)
    ]
    wrong += [
        f"{place(path, node)} calls {name}"
        for path, tree in trees("transom").items()
        for node, name in calls(tree)
        if name in PICKLING_CALLS
    ]
    assert not wrong


def test_no_network_outside_serving() -> None:
    assert not offenders(tuple(package for package in (*PACKAGES, "top") if package != "serving"), NETWORK)


def test_no_sleeps_and_no_global_statements() -> None:
    wrong = [
        f"{place(path, node)} calls {name}"
        for path, tree in trees("transom").items()
        for node, name in calls(tree)
        if name.endswith("sleep")
    ]
    wrong += [place(path, node) for path, tree in trees("transom").items() for node in ast.walk(tree) if isinstance(node, ast.Global)]
    assert not wrong


def test_prints_are_the_command_lines_only() -> None:
    allowed = ("cli", "top")
    assert not [
        place(path, node)
        for path, tree in trees("transom").items()
        if package_of(path) not in allowed
        for node, name in calls(tree)
        if name == "print"
    ]


def test_files_are_short() -> None:
    assert not {str(path): lines for path, lines in lines_of_files().items() if lines > FAIL}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    assert function.end_lineno is not None and first.end_lineno is not None
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


def test_functions_are_short() -> None:
    wrong = [
        f"{place(path, node)} {node.name}: {code_lines(node)} lines"
        for path, tree in (*trees("transom").items(), *trees("tests").items())
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > LONGEST_FUNCTION
    ]
    assert not wrong


def public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the public functions and classes of a module, and the public methods of more than five lines."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
                yield from (method for method in methods if code_lines(method) > 5)


def test_blocks_show_their_equation_in_ten_lines() -> None:
    source = ast.parse((ROOT / "transom" / "layers" / "block.py").read_text(encoding="utf-8"))
    blocks = {each.name: each for each in source.body if isinstance(each, ast.ClassDef)}
    for name in ("PreNormBlock", "PostNormBlock", "SandwichBlock", "ParallelBlock", "ParallelSeparateBlock"):
        (forward,) = [each for each in blocks[name].body if isinstance(each, ast.FunctionDef) and each.name == "forward"]
        _docstring, first, *_ = forward.body
        assert (forward.end_lineno or 0) - first.lineno < 10, name
        assert not [each for each in ast.walk(forward) if isinstance(each, ast.Lambda)], name


def test_what_is_public_has_a_docstring() -> None:
    missing = [place(path) for path, tree in trees("transom").items() if ast.get_docstring(tree) is None]
    missing += [
        f"{place(path, node)} {node.name}"
        for path, tree in trees("transom").items()
        for node in public(tree)
        if ast.get_docstring(node) is None and not _is_decorated(node, "override", "overload")
    ]
    assert not missing


def _is_decorated(node: ast.AST, *names: str) -> bool:
    return any(ast.unparse(decorator).endswith(names) for decorator in getattr(node, "decorator_list", []))


def below(schema: type[Schema]) -> Iterator[type[Schema]]:
    """Give a schema class and all that its fields may hold."""
    yield schema
    for field in schema.model_fields.values():
        for part in allowed_schemas(field):
            yield from below(part)


def test_every_field_of_the_schema_is_described() -> None:
    every = {part for recipe in recipes_by_task().values() for part in below(recipe)}
    undescribed = [
        f"{part.__name__}.{name}" for part in every for name, field in part.model_fields.items() if name != "kind" and not field.description
    ]
    assert len(every) > 30 and not undescribed


def test_tests_mirror_the_packages() -> None:
    beside = {"agreement", "bad_input", "benchmarks", "chaos", "docs", "serving"}
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in trees("tests") if len(path.relative_to(ROOT / "tests").parts) > 1}
    assert folders <= {*PACKAGES, *beside}


def test_nothing_names_a_place_outside_the_project() -> None:
    paths = [
        *trees("transom"),
        *trees("tests"),
        *(path for folder in ("docs", "log", "benchmarks", ".ci", "transom") for path in (ROOT / folder).rglob("*") if path.suffix in TEXT),
        *(path for path in ROOT.iterdir() if path.suffix in TEXT or path.name == "Makefile"),
    ]
    foreign = re.compile(r"(?<![\w./])/(work|root|home|opt|Users)/")
    wrong = [
        f"{place(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if foreign.search(line) and path != Path(__file__)
    ]
    assert not wrong


TEXT = {".md", ".toml", ".txt", ".py", ".sh", ".json"}


def test_unfinished_work_is_not_left_in_the_source() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
    wrong = [
        f"{place(path)}:{number}"
        for path in (*trees("transom"), *trees("tests"))
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if marks.search(line) and path != Path(__file__)
    ]
    assert not wrong


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert not {re.split(r"[><=\[]", name)[0] for name in wanted} - pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_pytorch_is_declared_in_the_tested_versions_only() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (pinned,) = [line.split("==")[1] for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    major, minor = map(int, pinned.split(".")[:2])
    assert [name for name in declared if name.startswith("torch")] == [f"torch>={major}.{minor},<{major}.{minor + 1}"]
