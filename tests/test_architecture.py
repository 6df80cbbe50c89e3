"""The house rules, read off the source: who may import whom, what configs may load, how long a file may be.

Every rule is a function from a source tree to the lines that break it. It is applied to this repository, and to a small
tree that breaks it, so that no rule passes because it cannot fail.
"""

import ast
import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What a package of bertlab may import besides itself and bertlab.errors. The floors come first, then what stands beside
# them; leaves may use everything but each other and the commands.
ALLOWED = {
    "ops": "",
    "modules": "ops",
    "models": "ops modules",
    "data": "ops",
    "optim": "ops",
    "hub": "ops modules models",
    "tasks": "ops modules models data optim",
    "training": "ops modules models data optim hub tasks",
    "studies": "ops modules models data optim hub tasks training",
    "report": "ops modules models data optim hub tasks training",
    "bench": "ops modules models data optim hub tasks training",
    "cli": "ops modules models data optim hub tasks training studies report bench",
    "errors": "",
    "": "models hub",  # bertlab/__init__.py gives these names
}
CONFIG_LIBRARIES = {"wandb", "hydra", "omegaconf"}
CONFIG_LIBRARY_PACKAGES = {"training", "report", "cli"}
COMMAND_PACKAGES = {"cli", "bench", "studies", "report"}
HEAVY = ("torch", "lightning", "pytorch_lightning", "transformers")
LONG, TOO_LONG, COMMAND_LINES = 400, 600, 12


class Import(NamedTuple):
    importer: str  # dotted module name
    target: str  # dotted name of the module that is imported
    line: int
    typing_only: bool  # under `if TYPE_CHECKING:`


def module_name(root: Path, file: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """The package below bertlab, "" for bertlab itself."""
    return (module.split(".") + [""])[1]


def typing_only_lines(tree: ast.Module) -> set[int]:
    blocks = [
        node.body
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    ]
    return {line for block in blocks for node in block for line in range(node.lineno, node.end_lineno + 1)}


def imports_of(root: Path, file: Path, modules: set[str]) -> Iterator[Import]:
    """Every import of ``file``, also those inside functions; ``from a import b`` is ``a.b`` where that is a module."""
    importer = module_name(root, file)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    typing_only = typing_only_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = importer.split(".") + (["__init__"] if file.name == "__init__.py" else [])
                base = ".".join(parts[: -node.level] + ([base] if base else []))
            inside = [f"{base}.{alias.name}" for alias in node.names]
            targets = sorted({name if name in modules else base for name in inside})
        else:
            continue
        for target in targets:
            yield Import(importer, target, node.lineno, node.lineno in typing_only)


def all_imports(root: Path) -> list[Import]:
    files = sorted((root / "bertlab").rglob("*.py"))
    modules = {module_name(root, file) for file in files}
    return [found for file in files for found in imports_of(root, file, modules)]


def floor_breaks(root: Path) -> list[str]:
    found = []
    for importer, target, line, _ in all_imports(root):
        source, goal = package_of(importer), package_of(target)
        if target.split(".")[0] != "bertlab" or goal in (source, "errors"):
            continue
        if source not in ALLOWED:
            found.append(f"{importer}: the package {source} is not in the table of floors")
        elif target == "bertlab" and source in ("training", "cli"):
            continue  # the version of bertlab goes into a run's record
        elif goal not in ALLOWED[source].split():
            found.append(f"{importer}:{line} imports {target}")
    return found


def cycles(root: Path) -> list[str]:
    """Circles of imports between modules. What ``__init__.py`` imports for typing it loads lazily, so it counts."""
    files = sorted((root / "bertlab").rglob("*.py"))
    facades = {module_name(root, file) for file in files if file.name == "__init__.py"}
    edges: dict[str, set[str]] = {module_name(root, file): set() for file in files}
    for importer, target, _, typing_only in all_imports(root):
        if target in edges and (importer in facades or not typing_only):
            edges[importer].add(target)
    found, done = [], set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append(" -> ".join([*path[path.index(module) :], module]))
        elif module not in done:
            for target in sorted(edges[module]):
                visit(target, [*path, module])
            done.add(module)

    for module in edges:
        visit(module, [])
    return found


def config_library_breaks(root: Path) -> list[str]:
    return [
        f"{importer}:{line} imports {target}"
        for importer, target, line, _ in all_imports(root)
        if target.split(".")[0] in CONFIG_LIBRARIES and package_of(importer) not in CONFIG_LIBRARY_PACKAGES
    ]


def heavy_configs(root: Path) -> list[str]:
    """Config files that load a heavy library, themselves or through what they import; asked of a fresh interpreter."""
    modules = ["bertlab", *(module_name(root, file) for file in sorted((root / "bertlab").rglob("config.py")))]
    script = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module)\n"
        f"    loaded = [name for name in {HEAVY} if name in sys.modules]\n"
        "    if loaded:\n"
        "        print(module, 'loads', *loaded)\n"
        "        break\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, *modules], cwd=root, capture_output=True, text=True, check=False
    )
    return run.stdout.splitlines() + ([run.stderr] if run.returncode else [])


def sources(root: Path) -> list[Path]:
    folders = [root / name for name in ("bertlab", "scripts", "tests")]
    return [root / "train.py", *(file for folder in folders for file in sorted(folder.rglob("*.py")))]


def long_files(root: Path, limit: int) -> list[str]:
    lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in sources(root) if file.exists()}
    return [f"{file.relative_to(root)} has {count} lines" for file, count in lines.items() if count > limit]


def utils_files(root: Path) -> list[str]:
    return [str(file.relative_to(root)) for file in sources(root) if "utils" in (file.stem, file.parent.name)]


def is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and ast.unparse(node.test) == "__name__ == '__main__'"
        and len(node.body) == 1
        and isinstance(node.body[0], ast.Expr | ast.Raise)
        and not node.orelse
    )


def logic_in_commands(root: Path) -> list[str]:
    """A command is a docstring, imports from the packages that hold the commands, and one call."""
    found = []
    for file in (root / "train.py", *sorted((root / "scripts").glob("*.py"))):
        if not file.exists():
            continue
        text = file.read_text(encoding="utf-8")
        if len(text.splitlines()) > COMMAND_LINES:
            found.append(f"{file.name} has more than {COMMAND_LINES} lines")
        body = ast.parse(text).body
        if not (body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)):
            found.append(f"{file.name} has no docstring")
        for node in body[1:]:
            if isinstance(node, ast.ImportFrom):
                allowed = (node.module or "").startswith("bertlab.") and package_of(node.module) in COMMAND_PACKAGES
            else:
                allowed = is_main_guard(node) or ast.unparse(node) == "import sys"
            if not allowed:
                found.append(f"{file.name}:{node.lineno} {ast.unparse(node).splitlines()[0]}")
    return found


def test_floors():
    assert floor_breaks(ROOT) == []


def test_no_circles():
    assert cycles(ROOT) == []


def test_config_libraries_stay_in_their_packages():
    assert config_library_breaks(ROOT) == []


def test_configs_load_no_heavy_library():
    assert heavy_configs(ROOT) == []


def test_file_lengths():
    for line in long_files(ROOT, LONG):
        warnings.warn(f"{line}: more than {LONG}", stacklevel=1)
    assert long_files(ROOT, TOO_LONG) == []


def test_no_utils():
    assert utils_files(ROOT) == []


def test_commands_hold_no_logic():
    assert logic_in_commands(ROOT) == []


@pytest.mark.parametrize("package", [module_name(ROOT, file) for file in sorted(ROOT.glob("bertlab/**/__init__.py"))])
def test_public_names_exist(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None


def plant(root: Path, files: dict[str, str]) -> None:
    """A tree with ``files``, and an ``__init__.py`` in every package that has none."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for folder in {root / "bertlab", *(file.parent for file in (root / "bertlab").rglob("*.py"))}:
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("bertlab/ops/a.py", "from bertlab.modules import attention"),
        ("bertlab/ops/a.py", "import bertlab.models.bert"),
        ("bertlab/modules/a.py", "def late():\n    from bertlab.models.config import BertConfig"),
        ("bertlab/models/a.py", "from ..tasks import pretraining"),
        ("bertlab/models/__init__.py", "from ..tasks import pretraining"),
        ("bertlab/models/a.py", "from bertlab import data"),
        ("bertlab/data/a.py", "from bertlab.models.config import BertConfig"),
        ("bertlab/optim/a.py", "import bertlab.data.config as config"),
        ("bertlab/hub/a.py", "if True:\n    from bertlab.training import run"),
        ("bertlab/tasks/a.py", "from bertlab.hub import save_pretrained"),
        ("bertlab/training/a.py", "from bertlab.bench import throughput"),
        ("bertlab/bench/a.py", "from bertlab.cli import validate"),
        ("bertlab/report/a.py", "from bertlab.studies import memory"),
        ("bertlab/errors.py", "from bertlab.ops import layout"),
        ("bertlab/attic/a.py", "from bertlab.ops import layout"),
        ("bertlab/tasks/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bertlab.cli import main"),
    ],
)
def test_a_break_of_the_floors_is_found(tmp_path, file, text):
    plant(tmp_path, {"bertlab/data/config.py": "", file: text})
    assert len(floor_breaks(tmp_path)) == 1


def test_lower_floors_and_errors_may_be_imported(tmp_path):
    files = {
        "bertlab/ops/layout.py": "import torch",
        "bertlab/modules/a.py": "from bertlab.ops.layout import SequenceLayout\nfrom bertlab.errors import UserError",
        "bertlab/cli/a.py": "from bertlab.bench import throughput\nfrom bertlab import __version__",
    }
    plant(tmp_path, files)
    assert floor_breaks(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        (
            {"bertlab/ops/a.py": "from bertlab.ops import b", "bertlab/ops/b.py": "def f():\n    from . import a"},
            "bertlab.ops.a -> bertlab.ops.b -> bertlab.ops.a",
        ),
        (
            {
                "bertlab/data/__init__.py": "if TYPE_CHECKING:\n    from bertlab.data.masking import mask_tokens",
                "bertlab/data/masking.py": "from bertlab.data import mask_tokens",
            },
            "bertlab.data -> bertlab.data.masking -> bertlab.data",
        ),
        ({"bertlab/ops/a.py": "import bertlab.ops.a"}, "bertlab.ops.a -> bertlab.ops.a"),
    ],
)
def test_a_circle_is_found(tmp_path, files, circle):
    plant(tmp_path, files)
    assert cycles(tmp_path) == [circle]


def test_a_circle_of_annotations_is_none(tmp_path):
    typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bertlab.ops.b import B"
    plant(tmp_path, {"bertlab/ops/a.py": typing_only, "bertlab/ops/b.py": "from bertlab.ops.a import A"})
    assert cycles(tmp_path) == []


@pytest.mark.parametrize("library", sorted(CONFIG_LIBRARIES))
def test_a_config_library_elsewhere_is_found(tmp_path, library):
    text = f"def late():\n    from {library}.errors import Error"
    plant(tmp_path, {"bertlab/tasks/a.py": text, "bertlab/training/a.py": text, "bertlab/cli/a.py": text})
    assert config_library_breaks(tmp_path) == [f"bertlab.tasks.a:2 imports {library}.errors"]


def test_a_heavy_config_is_found(tmp_path):
    plant(tmp_path, {"bertlab/data/config.py": "import bertlab.data.shapes", "bertlab/data/shapes.py": "import torch"})
    assert heavy_configs(tmp_path) == ["bertlab.data.config loads torch"]


def test_a_config_that_cannot_be_imported_is_found(tmp_path):
    plant(tmp_path, {"bertlab/data/config.py": "import bertlab.nowhere"})
    assert "No module named 'bertlab.nowhere'" in heavy_configs(tmp_path)[0]


def test_long_files_are_found(tmp_path):
    plant(tmp_path, {"bertlab/a.py": "#\n" * 400, "scripts/b.py": "#\n" * 401, "tests/c.py": "#\n" * 601})
    assert long_files(tmp_path, LONG) == ["scripts/b.py has 401 lines", "tests/c.py has 601 lines"]
    assert long_files(tmp_path, TOO_LONG) == ["tests/c.py has 601 lines"]


def test_utils_are_found(tmp_path):
    plant(tmp_path, {"bertlab/ops/utils.py": "", "bertlab/utils/a.py": "", "tests/a.py": ""})
    (tmp_path / "bertlab/utils/__init__.py").unlink()
    assert utils_files(tmp_path) == ["bertlab/ops/utils.py", "bertlab/utils/a.py"]


COMMAND = '"""Say what it does."""\n\n{}from bertlab.cli.train import main\n\nif __name__ == "__main__":\n    {}\n'


@pytest.mark.parametrize(("imports", "call"), [("", "main()"), ("import sys\n\n", "sys.exit(main())")])
def test_a_thin_command_passes(tmp_path, imports, call):
    plant(tmp_path, {"scripts/a.py": COMMAND.format(imports, call), "train.py": COMMAND.format(imports, call)})
    assert logic_in_commands(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        "import sys\n",
        COMMAND.format("from bertlab.training.run import run\n", "main()"),
        COMMAND.format("import torch\n", "main()"),
        COMMAND.format("", "x = 1\n    main(x)"),
        COMMAND.format("", "for _ in range(2): main()"),
        COMMAND.format("", "main()") + "\ndef helper():\n    pass\n",
        COMMAND.format("#\n" * 20, "main()"),
    ],
)
def test_logic_in_a_command_is_found(tmp_path, text):
    plant(tmp_path, {"scripts/a.py": text})
    assert len(logic_in_commands(tmp_path)) == 1
    plant(tmp_path, {"train.py": text, "scripts/a.py": COMMAND.format("", "main()")})
    assert len(logic_in_commands(tmp_path)) == 1
