"""How is the house built? Files, imports, lengths, comments and words of a checkout.

    python benchmarks/house.py [--root CHECKOUT] [--way] [--list FIGURE] [--json]

Reads the sources without importing them, so that it measures any commit: `git worktree add ../before COMMIT`,
then `--root ../before`. `--way` also runs a job there and counts the files that it passes (`job_way.py`, a
minute or two). `--list` names what a figure counts, one to a line.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ALGORITHMS = ("policies", "solve", "place", "estimate", "scheduler/constraints", "service/bounds", "sdk")
ENTRIES_OF_A_LIST = 4  # single-use modules that one module imports; chosen
STEPS_FROM = 20  # lines from which a function is to say its steps
LONGEST = 10

# What a reader of the field searches for. A space stands for a space, a hyphen, an underscore or nothing.
FIELD_WORDS = (
    *("webhook", "retention", "heartbeat", "supervisor", "telemetry", "rate limit", "fencing", "straggler"),
    *("quorum", "state machine", "MLFQ", "ILP", "partial preemption", "uniform crossover", "middleware"),
    *("backfill", "accounting", "gang", "reconciler", "constraint", "autoscaler", "leader", "archive"),
    *("forecast", "knapsack", "allocator", "exit code", "garbage collect", "reducer", "rendezvous"),
)
# Words that name any value, and so none.
EMPTY_NAMES = """
one found said those at held told known asked kept shown heard given taken seen settled
"""
EMPTY_FROM = 8  # lines: in shorter functions such a name can be seen to the end
# Names of modules and classes that only this project uses for what they are.
PRIVATE_MODULES = """
asking beats begin books clearing collecting counts cutting deciding deleting desk driving ending
endings eligible figures folding foresight gate gauge keeper knowledge laps lattice lead ledger lens
link listing looking meters news notifying occupied opening orders past planned recovering retired
retiring room seen serving shapes showing sia_menu spelling standing wishing within words writing
"""
PRIVATE_CLASSES = """
Aftermath Answer Arena Asked Beats Belief Books Checks Contenders Decider Desk Draw Driver Ending
Extra Fate Field Figures Found Gauge Grows Keep Keeper Keeping LeaseBook Ledger Lens Life Link
Meeting Members Menu Moment Notice Observer Occupied Orders Outlook Past Places Remembered Rescue
Rules Seen TellsChanges Who Wish Wished Wisher
"""
LONG_SENTENCE = 25  # words
# Pronouns of persons. A sentence may use one after it has named a person; jobs, nodes and files are things.
PERSONS = re.compile(
    r"\b(?:who|whoever|whom|nobody|somebody|everybody|anybody|someone|everyone|anyone|he|him|his|she|her|hers)\b",
    re.IGNORECASE,
)
PEOPLE = re.compile(
    r"\b(?:user|owner|operator|person|caller|visitor|reader|author|sender|admin|stranger|developer)s?\b|\bpeople\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str  # dotted
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its text, parsed."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """All of them."""
        return len(self.text.splitlines())

    @property
    def package(self) -> list[str]:
        """From which relative imports count."""
        parts = self.name.split(".")
        return parts if self.path.stem == "__init__" else parts[:-1]

    def imports(self, names: frozenset[str]) -> set[str]:
        """Modules of `names` that this one imports by a statement, wherever it stands."""
        imported: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = self.package[: len(self.package) - node.level + 1] if node.level else []
                origin = ".".join([*start, *([node.module] if node.module else [])])
                inside = {f"{origin}.{alias.name}" for alias in node.names}
                imported |= inside & names if inside <= names else (inside & names) | {origin}
        return (imported & names) - {self.name}

    @property
    def is_package(self) -> bool:
        """Whether it is the first file of a folder."""
        return self.path.stem == "__init__"

    def handed_on(self, names: frozenset[str]) -> dict[str, str]:
        """The module of each name that a package imports from one of `names` within it."""
        return {
            alias.asname or alias.name: node.module
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module in names and node.module != self.name
            for alias in node.names
        }

    def names_of_packages(self, packages: frozenset[str]) -> Iterator[tuple[str, str]]:
        """(package, name) of what it imports from packages."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module in packages and node.module != self.name:
                yield from ((node.module, alias.name) for alias in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Functions and methods, also within others."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def comment_lines(self) -> set[int]:
        """Numbers of lines that hold nothing but a comment; lines that divide a file count as none."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {
            token.start[0]
            for token in tokens
            if token.type == tokenize.COMMENT
            and token.line.lstrip().startswith("#")
            and "──" not in token.string
        }


def modules_of(root: Path) -> list[Module]:
    source = root / "src"
    modules = []
    for path in sorted((source / "stretto").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules.append(Module(name, path, path.read_text(encoding="utf-8")))
    return modules


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def single_use(modules: list[Module]) -> list[str]:
    """Modules that exactly one other module imports, as `module < importer`.

    Names that a package hands on are imported from the module that has them.
    """
    names = frozenset(module.name for module in modules)
    handed_on = {module.name: module.handed_on(names) for module in modules if module.is_package}
    importers: dict[str, set[str]] = {name: set() for name in names}
    for module in modules:
        for imported in module.imports(names):
            importers[imported].add(module.name)
        for package, name in module.names_of_packages(frozenset(handed_on)):
            if origin := handed_on[package].get(name):
                importers[origin].add(module.name)
    return [f"{name} < {min(users)}" for name, users in sorted(importers.items()) if len(users) == 1]


def not_of_a_list(found: list[str]) -> list[str]:
    """Single-use modules that are no entry of a list, such as a registry or an application.

    A module is a list if it is the only one to import so many: commands, routes, trace formats, policies.
    """
    users = Counter(line.partition(" < ")[2] for line in found)
    return [line for line in found if users[line.partition(" < ")[2]] < ENTRIES_OF_A_LIST]


def uncommented(modules: list[Module], folder: str) -> tuple[list[str], int]:
    """(functions over `STEPS_FROM` lines without a comment line, functions over `STEPS_FROM` lines)."""
    without, long = [], 0
    for module in inside(modules, folder):
        comments = module.comment_lines()
        for function in module.functions():
            if length_of(function) > STEPS_FROM:
                long += 1
                if not comments & set(range(function.lineno, (function.end_lineno or 0) + 1)):
                    without.append(f"{module.name}.{function.name}")
    return without, long


def inside(modules: list[Module], folder: str) -> list[Module]:
    prefix = f"stretto.{folder.replace('/', '.')}"
    return [module for module in modules if module.name == prefix or module.name.startswith(f"{prefix}.")]


def empty_names(modules: list[Module]) -> tuple[list[str], int]:
    """(bindings of empty names in functions over `EMPTY_FROM` lines, all bindings there)."""
    bound: list[str] = []
    total = 0
    for module in modules:
        seen: set[ast.AST] = set()  # a function within another counts once
        for function in module.functions():
            if length_of(function) <= EMPTY_FROM:
                continue
            for node in ast.walk(function):
                name = (
                    node.arg
                    if isinstance(node, ast.arg)
                    else node.id
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                    else None
                )
                if name is None or node in seen:
                    continue
                seen.add(node)
                total += 1
                if name in EMPTY_NAMES.split():
                    bound.append(f"{module.name}.{function.name}: {name}")
    return bound, total


def private_names(modules: list[Module]) -> list[str]:
    """Modules and classes under a name of our own."""
    files, classes = set(PRIVATE_MODULES.split()), set(PRIVATE_CLASSES.split())
    found = [module.name for module in modules if module.name.split(".")[-1] in files]
    found += [
        f"{module.name}.{node.name}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_") in classes
    ]
    return sorted(found)


def pages_of(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def hits(root: Path, modules: list[Module]) -> dict[str, int]:
    """How often each word of the field occurs in sources and pages."""
    text = "\n".join([module.text for module in modules] + [page.read_text() for page in pages_of(root)])
    return {word: len(pattern_of(word).findall(text)) for word in FIELD_WORDS}


def pattern_of(word: str) -> re.Pattern[str]:
    """A word at its beginning, with any ending; abbreviations whole and in capitals."""
    if word.isupper():
        return re.compile(rf"(?<![A-Za-z]){word}(?![A-Za-z])")
    spaced = word.replace(" ", r"[\s_-]?")
    return re.compile(rf"(?<![A-Za-z]){spaced}", re.IGNORECASE)


def long_sentences(root: Path) -> tuple[list[str], int]:
    """(sentences of more than `LONG_SENTENCE` words, all) of README and pages, without tables and code."""
    long, total = [], 0
    for page in pages_of(root):
        for sentence in sentences_of(page.read_text(encoding="utf-8")):
            total += 1
            if len(sentence.split()) > LONG_SENTENCE:
                long.append(f"{page.relative_to(root)}: {sentence}")
    return long, total


def sentences_of(markdown: str) -> Iterator[str]:
    """Sentences of running text; a piece of code counts as a word, a link as its text."""
    text = re.sub(r"```.*?```|<!--.*?-->", "\n\n", markdown, flags=re.DOTALL)
    text = re.sub(r"^(?:\||#|>|    ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]+`", "`code`", text)  # a sentence may begin with it
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])[*_)\"']*\s+(?=[A-Z`*_(\"'\d])", " ".join(paragraph.split())):
            if re.search(r"[a-z]", sentence):
                yield sentence


def docstrings_of(modules: list[Module]) -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of each module, class and function that has one."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    yield module.name if isinstance(node, ast.Module) else f"{module.name}.{node.name}", text


def makes_persons_of_things(text: str) -> bool:
    """Whether a sentence has a pronoun of persons and names no person before it.

    What stands between backticks is code, and counts for neither.
    """
    sentences = re.split(r"(?<=[.!?:;])\s+|\n\s*\n", re.sub(r"`[^`]*`", "", text))
    pronouns = [(sentence, PERSONS.search(sentence)) for sentence in sentences]
    return any(found and not PEOPLE.search(sentence, 0, found.start()) for sentence, found in pronouns)


def with_persons(modules: list[Module]) -> tuple[list[str], int]:
    """(docstrings with a pronoun of persons that stands for no person, all)."""
    docstrings = list(docstrings_of(modules))
    return [name for name, text in docstrings if makes_persons_of_things(text)], len(docstrings)


def sentences_of_docstring(text: str) -> Iterator[str]:
    """As `sentences_of`; what explains a parameter begins a sentence, and tables and trees are none.

    An explained parameter is `name: …` or `name, other: …` after a full stop. A table's columns are two
    spaces apart.
    """
    text = re.sub(r"^(?:\S.*? {2,}\S|\s*[├└↓]).*$", "", text, flags=re.MULTILINE)
    return sentences_of(re.sub(r"(?<=[.)])\s+(?=\w+(?:, \w+)*: )", "\n\n", text))


def words_of(sentence: str) -> list[str]:
    """Words and numbers, without the symbols and signs of formulae."""
    return re.findall(r"(?<!\S)(?=\S*[A-Za-z]{2}|[aAI]\b|[(\"']*\d[\d.,]*[)%\"',.:;]*(?!\S))\S+", sentence)


def long_docstring_sentences(modules: list[Module]) -> tuple[list[str], int]:
    """(sentences of more than `LONG_SENTENCE` words, all) of docstrings."""
    sentences = [
        (name, sentence) for name, text in docstrings_of(modules) for sentence in sentences_of_docstring(text)
    ]
    long = [f"{name}: {text}" for name, text in sentences if len(words_of(text)) > LONG_SENTENCE]
    return long, len(sentences)


def files_of_a_job(root: Path) -> list[str]:
    """What `job_way.py` prints, without its last line."""
    command = [sys.executable, str(Path(__file__).with_name("job_way.py")), "--root", str(root)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[:-1]


Figures = dict[str, object]


def measured(root: Path, way: bool) -> tuple[Figures, dict[str, list[str]]]:
    """(figures by name, what the countable ones count)."""
    modules = modules_of(root)
    lists: dict[str, list[str]] = {}
    figures: Figures = {"files": len(modules), "lines": sum(module.lines for module in modules)}

    def count(name: str, counted: list[str], of: int) -> None:
        lists[name] = counted
        figures[name] = f"{len(counted)} of {of} ({len(counted) / max(of, 1):.1%})"

    count("single-use modules", single_use(modules), len(modules))
    count("single-use modules that no list names", not_of_a_list(single_use(modules)), len(modules))
    if way:
        lists["files of a job's way"] = files_of_a_job(root)
        folders = Counter(".".join(name.split(".")[1:2]) for name in lists["files of a job's way"])
        figures["files of a job's way"] = len(lists["files of a job's way"])
        figures["of these"] = ", ".join(f"{folder} {number}" for folder, number in folders.most_common())
    functions = sorted(
        (
            (length_of(function), f"{module.name}.{function.name}")
            for module in modules
            for function in module.functions()
        ),
        reverse=True,
    )
    lists["longest functions"] = [f"{lines} {name}" for lines, name in functions[:50]]
    figures["longest functions"] = ", ".join(lists["longest functions"][:LONGEST])
    files = sorted(((module.lines, module.name) for module in modules), reverse=True)
    lists["longest files"] = [f"{lines} {name}" for lines, name in files[:50]]
    figures["longest files"] = ", ".join(lists["longest files"][:LONGEST])
    for folder in ALGORITHMS:
        there = inside(modules, folder)
        if there:
            comments = sum(len(module.comment_lines()) for module in there)
            lines = sum(module.lines for module in there)
            figures[f"comment lines in {folder}"] = f"{comments} of {lines} ({comments / lines:.1%})"
            count(f"long functions without one in {folder}", *uncommented(modules, folder))
    count("empty names in longer functions", *empty_names(modules))
    lists["private names of modules and classes"] = private_names(modules)
    figures["private names of modules and classes"] = len(lists["private names of modules and classes"])
    count(f"sentences over {LONG_SENTENCE} words", *long_sentences(root))
    count("docstrings that may make persons of things", *with_persons(modules))
    count(f"docstring sentences over {LONG_SENTENCE} words", *long_docstring_sentences(modules))
    figures["words of the field"] = ", ".join(f"{word} {n}" for word, n in hits(root, modules).items())
    return figures, lists


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument(
        "--way", action="store_true", help="also run a job and count the files that it passes"
    )
    parser.add_argument("--list", metavar="FIGURE", help="name what this figure counts")
    parser.add_argument("--json", action="store_true", help="figures and lists as JSON")
    options = parser.parse_args()
    figures, lists = measured(options.root.resolve(), options.way)
    if options.list:
        if options.list not in lists:
            parser.error(f"--list must be one of {', '.join(lists)}; got {options.list}")
        print("\n".join(lists[options.list]))
    elif options.json:
        print(json.dumps({"figures": figures, "lists": lists}, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:45} {value}")


if __name__ == "__main__":
    main()
