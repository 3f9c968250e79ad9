"""How many small faults in the method's formulas the tests notice: mutation testing, one fault at a time.

    python -m benchmarks.mutants                      all modules
    python -m benchmarks.mutants objective dirichlet  some of them
    python -m benchmarks.mutants --sample 20          20 mutants of each, at random

A mutant is a copy of src with one change: another comparison or arithmetic operator, another constant, no `not`, a
returned value replaced by None, a statement removed. The tests of the module, its doctests and tests/test_edges.py
run until the first failure; a mutant that passes them all has survived. Docstrings, type hints and messages are left
alone.
"""

import argparse
import ast
import copy
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Imported once, before the processes of the mutants are forked; not srepr, whose copy they import.
import hypothesis
import mpmath  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch.distributed.tensor  # noqa: F401  (torch.testing imports it on its first call)
import tyro  # noqa: F401

ROOT = Path(__file__).parents[1]
MODULES = ("objective", "dirichlet", "balance", "heads", "metrics", "posterior")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def untouched(tree: ast.Module) -> set[ast.AST]:
    """Nodes whose change is no fault of the method: docstrings, type hints, messages, decorators."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        left: list[ast.AST | None] = []
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            left += [statement for statement in node.body if is_text(statement)]
        if isinstance(node, ast.FunctionDef):
            left += [node.returns, *node.decorator_list, *(argument.annotation for argument in node.args.args)]
            left += [argument.annotation for argument in node.args.kwonlyargs]
        if isinstance(node, ast.AnnAssign):
            left += [node.annotation] if node.value else [node]
        if isinstance(node, ast.Raise):
            left += [node.exc, node.cause]
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
            left += [node]
        for inner in left:
            found |= set() if inner is None else set(ast.walk(inner))
    return found


def is_text(statement: ast.AST) -> bool:
    """Whether a statement is a string on its own."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """What a node can become, and in words; None removes a statement."""
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[at] = SWAPS[type(operator)]()  # type: ignore[call-overload]
            yield f"{type(operator).__name__} -> {SWAPS[type(operator)].__name__}", other
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        other = copy.deepcopy(node)
        other.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        yield f"{type(node.op).__name__} -> {SWAPS[type(node.op)].__name__}", other
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield f"{type(node.op).__name__} dropped", copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        yield "returns None", ast.Return(ast.Constant(None))
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Raise | ast.If | ast.For):
        yield "removed", None


class Change(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, target: ast.AST, by: ast.AST | None) -> None:
        self.target, self.by = target, by

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.target:
            return ast.copy_location(ast.Pass() if self.by is None else self.by, node)
        return super().generic_visit(node)


def mutants(source: str) -> list[tuple[str, ast.AST, ast.AST | None]]:
    """Every mutant of a module: a description, the node that changes, and what it becomes."""
    tree = ast.parse(source)
    left, found = untouched(tree), []
    for node in ast.walk(tree):
        if node in left or not hasattr(node, "lineno"):
            continue
        for what, other in mutations(node):
            line = source.splitlines()[node.lineno - 1].strip()
            found.append((f"line {node.lineno}, {what}: `{line}`", node, other))
    return found


def changed(source: str, node: ast.AST, other: ast.AST | None) -> str:
    """The module with one node replaced, from a fresh tree."""
    tree = ast.parse(source)
    same = next(
        twin
        for twin in ast.walk(tree)
        if type(twin) is type(node) and hasattr(twin, "lineno") and place(twin) == place(node)
    )
    return ast.unparse(ast.fix_missing_locations(Change(same, other).visit(tree)))


def place(node: ast.AST) -> tuple[int, ...]:
    """Where a node begins and ends."""
    return tuple(getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def killed(folder: Path, module: str, source: str, limit: int) -> bool:
    """Whether the tests of a module fail for this source of it in a copy of src, or take too much processor time."""
    (folder / "srepr" / f"{module}.py").write_text(source)
    tests = [ROOT / "tests" / f"test_{module}.py", folder / "srepr" / f"{module}.py", ROOT / "tests" / "test_edges.py"]
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # not of the clock: the machine may be busy
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        # The same examples for every mutant, and the first failure is enough: it need not be shrunk.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
        hypothesis.settings.load_profile("mutants")
        # No test of these modules uses a plugin, and nobody reads the report.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        quick = ["-x", "--assert=plain", "--tb=no", "-p", "no:logging", "-p", "no:cacheprovider"]
        # -c: the settings of the project, with its doctests, although the copy lies elsewhere.
        settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
        os._exit(int(pytest.main([*quick, *settings, *map(str, tests)])))
    return os.waitpid(child, 0)[1] != 0


def main() -> None:
    """Measure the modules and print a table and the survivors in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=MODULES, metavar="module")
    parser.add_argument("--sample", type=int, help="mutants of each module, at random; by default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=60, help="processor seconds for the tests of one mutant")
    chosen = parser.parse_args()
    print("| module | mutants | tried | killed | |\n|---|---:|---:|---:|---:|")
    survivors = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "src"
        shutil.copytree(ROOT / "src", folder, ignore=shutil.ignore_patterns("__pycache__"))
        for module in chosen.modules:
            source = (ROOT / "src" / "srepr" / f"{module}.py").read_text()
            if killed(folder, module, source, chosen.limit):
                raise SystemExit(f"the tests of {module} fail without a mutant")
            every = mutants(source)
            tried = random.Random(chosen.seed).sample(every, min(chosen.sample or len(every), len(every)))
            dead = 0
            for what, *how in tried:
                if killed(folder, module, changed(source, *how), chosen.limit):
                    dead += 1
                else:
                    survivors.append(f"- {module}, {what}")
                    print(survivors[-1], file=sys.stderr, flush=True)
            (folder / "srepr" / f"{module}.py").write_text(source)
            print(f"| {module} | {len(every)} | {len(tried)} | {dead} | {dead / len(tried):.0%} |", flush=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{(spent.ru_utime + spent.ru_stime) / 60:.1f} CPU minutes. Survivors:\n", *survivors, sep="\n")


if __name__ == "__main__":
    main()
