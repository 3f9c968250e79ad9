"""The rules of the house (docs/architecture.md), read off the import statements, lazy ones too."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "srepr"
METHOD = {
    *("representation", "posterior", "features", "heads", "balance", "dirichlet", "objective", "methods"),
    *(
        "standardization",
        "solver",
        "selection",
        "retraining",
        "classifier",
        "metrics",
        "analysis",
        "views",
        "bootstrap",
        "decisions",
        "calibration",
        "prediction",
    ),
}
LAYERS = [
    {"errors", "config", "progress"},
    {"storage"},
    {"data", "models"},
    METHOD,
    {"anymodel"},
    {"run"},
    {"integrations", "importing"},
    {"report", "deploy", "reproduction"},
    {"cli"},
]
"""From left to right; a room imports from itself and from the layers to its left."""
TRAINING = {"srepr.representation", "srepr.retraining", "srepr.features", "srepr.anymodel", "lightning_fabric"}
DISK = {"tempfile", "shutil", "os", "io", "glob", "safetensors"}
FILE_CALLS = {"open", "mkdir", "unlink", "write_text", "write_bytes", "read_text", "read_bytes", "touch", "rename"}


def room(path):
    """The top-level name that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def imports(source):
    """Every module that a file imports, wherever the statement stands; `from srepr import x` imports srepr.x."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where a name comes from"
            if node.module == "srepr":
                yield from (f"srepr.{name.name}" for name in node.names if not name.name.startswith("__"))
            else:
                yield node.module


def broken_rules(here, source):
    """One line for each import of a file in the room `here` that goes against the order."""
    rank = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    for module in imports(source):
        first, _, rest = module.partition(".")
        there = rest.split(".")[0]
        if first != "srepr" or there == here or (rank[there] == rank[here] and {here, there} <= METHOD | LAYERS[0]):
            continue
        if rank[there] >= rank[here]:
            yield f"{here} imports {module}"
        if here in METHOD and there == "storage":
            yield f"{here}, a file of the method, imports {module}"
    if here in METHOD:
        tree = ast.parse(source)
        yield from (f"{here} imports {module}" for module in imports(source) if module.split(".")[0] in DISK)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in FILE_CALLS:
                    yield f"{here} calls {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_from_its_left_and_the_method_does_not_touch_the_disk(path):
    assert list(broken_rules(room(path), path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("here", "source", "complaint"),
    [
        ("data", "from srepr.run.folder import STAGE_1", "data imports srepr.run.folder"),
        ("run", "def f():\n    from srepr.importing.start import start_network", "run imports srepr.importing.start"),
        ("models", "import srepr.data.loaders", "models imports srepr.data.loaders"),
        ("report", "from srepr import deploy", "report imports srepr.deploy"),
        ("features", "from srepr.storage.files import write_json", "features, a file of the method, imports"),
        ("metrics", "import tempfile", "metrics imports tempfile"),
        ("heads", "open('head.json')", "heads calls open"),
    ],
)
def test_a_broken_rule_is_noticed(here, source, complaint):
    assert any(line.startswith(complaint) for line in broken_rules(here, source))


def test_every_module_belongs_to_a_room():
    known = set().union(*LAYERS)
    assert {room(path) for path in modules()} == known


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_short_and_so_are_its_functions(path):
    """350 lines to a module, 60 lines of code to a function, docstrings and blank lines not counted."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    assert len(lines) <= 350
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            code = [line for line in lines[first.lineno - 1 : node.end_lineno] if line.strip()]
            reason = lines[node.lineno - 1]
            assert len(code) <= 60 or "long:" in reason, f"{node.name} has {len(code)} lines of code"


def loaded_by(statement):
    """The modules that a fresh interpreter has loaded after the statement."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def training_stack(loaded):
    return {name for name in loaded for part in TRAINING if name == part or name.startswith(f"{part}.")}


def test_the_analysis_formulas_do_not_load_the_training_stack():
    assert training_stack(loaded_by("import srepr.analysis")) == set()


def test_a_training_begins_without_packages_that_it_does_not_need():
    """torchmetrics, which Lightning looks for, and all that torchmetrics looks for: five seconds of each command."""
    loaded = loaded_by("import srepr.run.train")
    assert {"torchmetrics", "transformers", "sklearn", "pytorch_lightning"} & loaded == set()
    assert "lightning_fabric" in loaded


def test_predicting_with_an_exported_model_does_not_load_the_training_stack(tmp_path):
    from srepr.classifier import Classifier
    from srepr.data.about import About
    from srepr.models import mlp
    from srepr.run.checkpoints import save_classifier

    about = About(
        network="mlp",
        options={"inputs": 4},
        class_names=("a", "b"),
        counts=(9, 3),
        shape=(4,),
        mean=(0.0,),
        std=(1.0,),
    )
    save_classifier(tmp_path / "model.safetensors", Classifier(mlp(2, inputs=4), about=about), {})
    (tmp_path / "rows.csv").write_text("a,b,c,d\n1,2,3,4\n")
    predict = (
        f"import srepr; srepr.load({str(tmp_path / 'model.safetensors')!r}).predict({str(tmp_path / 'rows.csv')!r})"
    )
    assert training_stack(loaded_by(predict)) == set()


@pytest.mark.parametrize("path", sorted((PACKAGE.parents[1] / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_a_benchmark_imports_what_is_there(path):
    """Also inside functions, which only a long measurement would run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "srepr":
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
