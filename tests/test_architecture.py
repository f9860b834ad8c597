"""Imports point one way, and a file says what it is for."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stretto"
MOST_LINES = 600

# What each folder, or file beside them, may import besides itself. A new one takes its place here first.
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "defaults": set(),
    "solve": set(),
    "estimate": {"model", "solve", "settings", "components"},
    "policies": {"model", "solve", "estimate", "settings", "components"},
    "place": {"model", "solve", "settings", "components"},
    "scheduler": {"model"},
    "lend": {"model", "solve", "settings"},
    "traces": {"model", "catalogue", "settings"},
    "clusters": {"model"},
    "catalogue": {"model", "estimate"},
    "sim": {
        "model",
        "solve",
        "settings",
        "estimate",
        "place",
        "scheduler",
        "lend",
        "traces",
        "clusters",
        "catalogue",
    },
    "report": {"model", "sim"},
    "settings": set(),
    "components": {"settings"},
    # Of these `testing/services` alone imports the last two: see below.
    "testing": {
        *("model", "solve", "estimate", "policies", "place", "scheduler", "backends"),
        *("client", "demo", "agent"),
    },
    "sdk": {"model"},
    "client": set(),
    "jobfile": {"model", "estimate"},
    "agent": set(),
    "backends": {"model", "jobfile", "agent", "settings"},
}
MAY_IMPORT["service"] = {*MAY_IMPORT} - {"testing", "report"}
MAY_IMPORT["kubernetes_operator"] = {"model", "jobfile", "backends", "client"}
MAY_IMPORT["demo"] = {"model", "defaults", "client", "jobfile", "agent", "backends"}
# Of these one experiment alone imports `testing`: see below.
MAY_IMPORT["experiments"] = {*MAY_IMPORT} - {
    "service",
    "kubernetes_operator",
    "jobfile",
    "agent",
    "backends",
    "demo",
}
MAY_IMPORT["notebook"] = {"model", "defaults", "sim", "report", "experiments"}
MAY_IMPORT["cli"] = {*MAY_IMPORT} - {"testing", "notebook"}
MAY_IMPORT["__main__"] = {"cli"}
# What is wrong with an input, in words, and how a file is written: these import nothing, all may import them.
GROUND: dict[str, set[str]] = {"errors": set(), "suggestions": set(), "whole_files": set()}

# The same within the service, from the ground up.
SERVICE = PACKAGE / "service"
MAY_IMPORT_IN_SERVICE: dict[str, set[str]] = {
    "pool": set(),
    "state": set(),
    "eventlog": {"state"},
    "emulated": {"state", "eventlog"},
    "leadership": {"state", "eventlog"},
    "sealed_secrets": {"eventlog"},
    "uploads": set(),
    "reconcile": {"state", "eventlog", "leadership", "sealed_secrets", "uploads"},
    "scheduling": {"state", "eventlog", "leadership", "reconcile"},
    "control_loop": {"reconcile", "scheduling"},
    "autoscaling": {"state", "eventlog", "leadership", "reconcile", "scheduling"},
    "forecast": {"state", "scheduling"},
    "lending": {"state", "eventlog", "leadership", "reconcile"},
    "backend_registry": {"emulated"},
    "gc_tuning": set(),
    "structured_logs": set(),
    "log_loss": {"state", "eventlog", "reconcile"},
    "webhooks": {"state", "eventlog", "pool"},
    "backup": {"eventlog", "backup_uploads", "uploads"},
    "backup_uploads": {"state", "eventlog", "uploads"},
    "budgets": {"state", "eventlog"},
    "gpu_use": {"state", "eventlog"},
    "kept_forecasts": {"state", "eventlog", "scheduling", "forecast", "pool"},
    "retention": {"state", "eventlog", "leadership", "reconcile", "uploads"},
    "state_snapshots": {"state", "eventlog", "scheduling"},
    "one_decision": {"state", "eventlog", "scheduling", "state_snapshots"},
}
MAY_IMPORT_IN_SERVICE["service"] = {*MAY_IMPORT_IN_SERVICE} - {"forecast", "state_snapshots"}
MAY_IMPORT_IN_SERVICE["http"] = {*MAY_IMPORT_IN_SERVICE} - {"state_snapshots"}
MAY_IMPORT_IN_SERVICE["signals"] = set()
MAY_IMPORT_IN_SERVICE["recovery"] = {"state", "eventlog", "scheduling", "state_snapshots"}
MAY_IMPORT_IN_SERVICE["recovery"] |= {"retention", "gc_tuning"}
MAY_IMPORT_IN_SERVICE["standby"] = {"eventlog", "http", "recovery", "signals"}
MAY_IMPORT_IN_SERVICE["config"] = {
    "emulated",
    "gpu_use",
    "http",
    "reconcile",
    "retention",
    "service",
    "uploads",
    "webhooks",
}
MAY_IMPORT_IN_SERVICE["main"] = {*MAY_IMPORT_IN_SERVICE}  # it puts all together

PARTS = sorted(
    {path.parent.name for path in PACKAGE.glob("*/*.py")}
    | {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
)
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(path for top in ("src", "tests", "benchmarks") for path in (ROOT / top).rglob("*.py"))

# Left out of every install unless asked for, or never needed by the core at all.
OPTIONAL = (
    *("torch", "ray", "pyslurm", "kubernetes", "lightkube", "msgspec"),
    *("pyarrow", "matplotlib", "pandas", "IPython", "resvg_py", "sklearn", "jwt"),
)
FOR_SERVICE = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "prometheus_client", "psycopg", "cryptography")
FOR_TESTS = ("pytest", "hypothesis")

# Where decisions are computed, from arguments alone: the same snapshot always gives the same plan.
PURE = ("model", "solve", "estimate", "policies", "place", "scheduler", "lend")
IMPURE_MODULES = {
    *("time", "datetime", "calendar", "sched"),  # clocks
    *("random", "secrets", "uuid"),  # chance
    *("threading", "asyncio", "multiprocessing", "concurrent", "queue", "signal", "subprocess", "os", "pty"),
    *(
        "socket",
        "socketserver",
        "select",
        "selectors",
        "ssl",
        "http",
        "urllib",
        "httpx",
        "requests",
        "ftplib",
    ),
    *("logging", "tempfile", "shutil", "sqlite3"),
}
SEEDED = {"Generator", "default_rng"}  # of numpy.random: what draws from a state of its own

DOTTED = re.compile(r"stretto(\.\w+){2,}(:\w+)?")  # "stretto.policies.sia.policy:Sia": an import at run time
MACHINE_PATH = re.compile(r"(?<![\w./:-])/(?:work|tmp|root|home|Users)\b(?![-.])")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_by(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, also inside functions and by name at run time."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join((*start, *([node.module] if node.module else [])))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)  # `from stretto import model`
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.value


def parts_imported_by(path: Path) -> set[str]:
    names = [name.split(".") for name in imported_by(path)]
    return {name[1] for name in names if name[0] == "stretto" and len(name) > 1 and name[1] in PARTS}


def imports_in_service(part: str) -> set[str]:
    """Other parts of the service that one imports."""
    paths = [*(SERVICE / part).rglob("*.py"), *SERVICE.glob(f"{part}.py")]
    names = [name.split(".") for path in paths for name in imported_by(path)]
    return {name[2] for name in names if name[:2] == ["stretto", "service"] and len(name) > 2} - {part}


def imports_of(part: str) -> dict[str, set[str]]:
    """Other parts that a part imports, each with the files that do."""
    found: dict[str, set[str]] = {}
    for path in [*(PACKAGE / part).rglob("*.py"), *PACKAGE.glob(f"{part}.py")]:
        for other in parts_imported_by(path) - {part}:
            found.setdefault(other, set()).add(name_of(path))
    return found


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_what_its_place_allows(part: str) -> None:
    assert part in GROUND | MAY_IMPORT, f"say in MAY_IMPORT what {part} may import"
    allowed = GROUND[part] if part in GROUND else {*GROUND, *MAY_IMPORT[part]}
    assert {other: files for other, files in imports_of(part).items() if other not in allowed} == {}


def test_of_the_shipped_suites_only_that_of_services_starts_one() -> None:
    importing = {file for part in ("client", "demo") for file in imports_of("testing").get(part, set())}
    assert importing
    assert {file.split("/")[3] for file in importing} == {"services"}


def test_of_the_experiments_only_the_one_with_real_trainings_starts_workers() -> None:
    importing = {file for part in ("testing", "sdk") for file in imports_of("experiments").get(part, set())}
    assert {file.split("/", 2)[-1] for file in importing} == {"experiments/ones/switches.py"}


def test_the_parts_of_the_service_import_one_way_too() -> None:
    parts = {path.parent.name for path in SERVICE.glob("*/*.py")} | {
        path.stem for path in SERVICE.glob("*.py")
    }
    found = {part: imports_in_service(part) for part in parts - {"__init__"}}
    assert found["eventlog"] == {"state"}  # the walk sees them
    assert {part: found[part] - MAY_IMPORT_IN_SERVICE.get(part, set()) for part in found} == {
        part: set() for part in MAY_IMPORT_IN_SERVICE
    }
    tuple(TopologicalSorter(MAY_IMPORT_IN_SERVICE).static_order())


def import_table() -> list[str]:
    """What each part may import, as rows of the page that says so."""
    parts = [part for part in MAY_IMPORT if part != "__main__"]
    rows = []
    for part in parts:
        allowed = sorted(MAY_IMPORT[part])
        others = sorted({*parts} - {part, *allowed})
        names = ", ".join(f"`{name}`" for name in (allowed if len(allowed) <= len(others) else others))
        everything = "" if len(allowed) <= len(others) else "everything but "
        rows.append(f"| `{part}` | {everything}{names or 'nothing of ours'} |")
    return rows


def test_the_page_of_the_layout_says_what_each_part_may_import() -> None:
    page = (ROOT / "docs" / "decisions" / "0001-layout.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `.*\|$", page, flags=re.M) == import_table(), "\n".join(import_table())


def test_the_folders_of_tests_are_those_of_the_package() -> None:
    paths = [
        path for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    ]
    assert {path.name for path in paths} - {*PARTS} == {"conformance", "deploy", "examples", "golden"}


def test_of_its_parts_the_package_itself_names_only_what_notebooks_ask_it_for() -> None:
    assert parts_imported_by(PACKAGE / "__init__.py") == {"notebook"}  # and loads it when it is asked for


def test_only_the_outer_parts_import_the_simulated_world() -> None:
    of_the_simulator = {part for part in PARTS if "sim" in imports_of(part)}
    assert of_the_simulator <= {"cli", "experiments", "notebook", "service", "report"}


def test_no_part_depends_on_itself_through_others() -> None:
    tuple(TopologicalSorter({part: set(imports_of(part)) for part in PARTS}).static_order())
    tuple(TopologicalSorter(GROUND | MAY_IMPORT).static_order())  # nor could one, within what is allowed


def test_the_walk_sees_every_way_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "stretto")
    module = tmp_path / "stretto" / "solve" / "sneaky.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from stretto import sim\n"
        "from ..place import pack\n"
        "def later():\n"
        "    import stretto.cli.app\n"
        "    return load('stretto.policies.sia.policy:Sia')\n"
    )
    assert parts_imported_by(module) == {"sim", "place", "cli", "policies"}


def impurities_of(path: Path) -> set[str]:
    """Clocks, chance, threads, processes and sockets that a module imports or draws from."""
    found = {name for name in imported_by(path) if name.split(".")[0] in IMPURE_MODULES}
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name("np" | "numpy"), attr="random"), attr=name):
                found |= {f"numpy.random.{name}"} if name not in SEEDED else set()
            case ast.ImportFrom(module="numpy.random", names=names):
                found |= {f"numpy.random.{alias.name}" for alias in names if alias.name not in SEEDED}
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[], keywords=[]):
                found |= {"default_rng()"} if name == "default_rng" else set()  # seeded by the machine
            case ast.Call(func=ast.Name(id="input" | "open" | "print" as name)):
                found.add(f"{name}()")
    return found


def test_what_decides_has_no_clock_no_chance_no_threads_and_no_sockets() -> None:
    paths = [path for part in PURE for path in sorted((PACKAGE / part).rglob("*.py"))]
    assert {name_of(path).split("/")[2] for path in paths} == set(PURE)
    assert {name_of(path): found for path in paths if (found := impurities_of(path))} == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import time", {"time"}),
        ("from datetime import date", {"datetime", "datetime.date"}),
        (
            "def later():\n    from concurrent.futures import Future",
            {"concurrent.futures", "concurrent.futures.Future"},
        ),
        ("import os.path", {"os.path"}),
        ("x = np.random.uniform()", {"numpy.random.uniform"}),
        ("from numpy.random import seed", {"numpy.random.seed"}),
        ("x = np.random.default_rng()", {"default_rng()"}),
        ("x = np.random.default_rng([seed, 1])", set()),
        ("def drawn(rng: np.random.Generator) -> float:\n    return rng.random()", set()),
        ("print(1)", {"print()"}),
    ],
)
def test_the_walk_sees_every_clock_and_all_chance(
    line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "stretto")
    module = tmp_path / "stretto" / "solve" / "sneaky.py"
    module.parent.mkdir(parents=True)
    module.write_text(line)
    assert impurities_of(module) == expected


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("blocked", "skipped"),
    [
        pytest.param(
            OPTIONAL,
            ("sdk", "backends/kubernetes", "kubernetes_operator", "service/http/oidc/provider.py"),
            id="all but the SDK, and what speaks with others, imports without optional packages",
        ),
        pytest.param(
            FOR_SERVICE,
            ("service", "backends", "agent", "jobfile"),
            id="all but the service imports without what it needs",
        ),
        pytest.param(FOR_TESTS, ("testing",), id="all but testing imports without test tools"),
    ],
)
def test_the_package_imports_without(blocked: tuple[str, ...], skipped: tuple[str, ...]) -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if path.stem != "__main__" and not any(path.is_relative_to(PACKAGE / folder) for folder in skipped)
    ]
    program = (
        f"import sys, importlib\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PRIVATE = re.compile(r"_[^_].*|_")


@cache
def private_names() -> frozenset[str]:
    """Names of the package that begin with an underscore: of functions, classes, attributes and values."""
    names: set[str] = set()
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
    return frozenset(name for name in names if PRIVATE.fullmatch(name))


def private_names_read_by(path: Path) -> set[str]:
    """Private names of the package that a test reads, imports, or replaces by their text."""
    read: set[str] = set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="self")) | ast.Call(args=[ast.Name(id="self"), *_]):
                pass  # its own
            case ast.Attribute(attr=name) if name in private_names():
                read.add(name)
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "stretto":
                read |= {alias.name for alias in names if PRIVATE.fullmatch(alias.name)}
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=arguments) if (
                called in {"setattr", "getattr", "delattr", "patch", "object"}
            ):
                texts = [one.value for one in arguments if isinstance(one, ast.Constant)]
                ends = {text.rpartition(".")[2] for text in texts if isinstance(text, str)}
                read |= {name for name in ends if PRIVATE.fullmatch(name)}
    return read


@pytest.mark.slow
def test_no_test_reads_a_private_name_of_the_package() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert {name_of(path): names for path in paths if (names := private_names_read_by(path))} == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ledger._write()", {"_write"}),
        ("self._write()", set()),
        ("namedtuple._replace(a=1)", set()),
        ("from stretto.service.service import _row", {"_row"}),
        ("from stretto import __version__", set()),
        ("patch.setattr(ledger, '_write', None)", {"_write"}),
        ("patch.setattr('stretto.service.service._row', None)", {"_row"}),
    ],
)
def test_the_walk_sees_private_names(line: str, expected: set[str], tmp_path: Path) -> None:
    module = tmp_path / "test_sneaky.py"
    module.write_text(line)
    assert private_names_read_by(module) == expected


def test_every_module_says_what_it_is_for() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_every_file_reads_in_one_sitting() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = []
    for path in readable_files():
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        ):
            if MACHINE_PATH.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert found == []


def readable_files() -> Iterator[Path]:
    """Every text file that a reader of the repository meets."""
    tops = [ROOT / top for top in ("src", "tests", "benchmarks", "docs", "examples", ".ci")]
    inside = (path for top in tops for path in top.rglob("*") if "__pycache__" not in path.parts)
    for path in sorted([*inside, *ROOT.glob("*")]):
        if (
            path.name != ".git"
            and path.is_file()
            and path.suffix not in {".png", ".gz", ".parquet", ".pyc", ".npz"}
        ):
            yield path
