"""Values as one compressed file of columns and words, and back: numbers as arrays, the rest as JSON.

Values are None, truth values, numbers, texts, tuples, lists, mappings, numpy arrays, and enumerations and
dataclasses of this package. Nothing else can be written, and reading makes nothing else: unlike with
pickles, a file cannot run code. What is read equals what was written, bit for bit.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

PACKAGE = "stretto."  # whose dataclasses and enumerations are values
FEWEST = 8  # chosen: a shorter sequence is written item by item
WORDS = "words"  # the array that holds the JSON

Tree = Any  # what JSON can say; arrays are named in it by their number


class Damaged(Exception):
    """A file that holds no values, or only a part of them."""


def write_values(file: BinaryIO, value: Any) -> None:
    """Write a value; TypeError where a part of it cannot be written."""
    arrays: list[np.ndarray] = []
    write_tree(file, _tree(value, arrays), arrays)


def write_tree(file: BinaryIO, tree: Tree, arrays: Sequence[np.ndarray]) -> None:
    """Write words and their arrays, sealed; whether they make values is for the reader to check."""
    words = json.dumps(tree, separators=(",", ":")).encode()
    columns = {f"a{number}": array for number, array in enumerate(arrays)}
    columns[WORDS] = np.frombuffer(words, dtype=np.uint8)
    packed = BytesIO()
    np.savez_compressed(packed, **columns)  # type: ignore[arg-type]
    archive = packed.getvalue()[:-2]  # without the length of its comment, which is empty
    file.write(archive + len(_seal(archive)).to_bytes(2, "little") + _seal(archive))


def read_values(path: Path) -> Any:
    """What `write_values` wrote; Damaged where the file is incomplete, altered or something else."""
    try:
        content = path.read_bytes()
    except OSError as wrong:
        raise Damaged(f"{path}: {wrong.strerror}") from None
    size = len(_seal(b""))
    archive, seal = content[: -size - 2], content[-size:]
    if seal != _seal(archive):
        raise Damaged(f"{path}: incomplete, altered, or no such file")
    try:
        with np.load(BytesIO(content), allow_pickle=False) as columns:
            arrays = [columns[f"a{number}"] for number in range(len(columns.files) - 1)]
            tree = json.loads(columns[WORDS].tobytes().decode())
        return _value(tree, arrays)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, ImportError) as wrong:
        raise Damaged(f"{path}: {type(wrong).__name__}: {wrong}") from None


def _seal(archive: bytes) -> bytes:
    """What stands as its comment at the end of the archive: a digest of all before it."""
    return hashlib.blake2b(archive, digest_size=20).hexdigest().encode()


def _tree(value: Any, arrays: list[np.ndarray]) -> Tree:
    """A value in words, with its arrays put aside."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Enum):
        return {"enum": _class_name(type(value)), "name": value.name}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": _aside(np.asarray(value), arrays), "scalar": isinstance(value, np.generic)}
    if isinstance(value, Mapping):
        return {"map": [_items(value.keys(), arrays), _items(value.values(), arrays)]}
    if type(value) in (tuple, list):
        return {type(value).__name__: _items(value, arrays)}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: _tree(getattr(value, name), arrays) for name in _field_names(type(value))}
        return {"of": _class_name(type(value)), "fields": parts}
    raise TypeError(f"only values can be written, got a {type(value).__name__}")


def _items(values: Any, arrays: list[np.ndarray]) -> Tree:
    """A sequence: as columns where its items are alike, else one by one."""
    items = list(values)
    if len(items) < FEWEST:
        return [_tree(item, arrays) for item in items]
    kinds = {type(item) for item in items}
    kind = kinds.pop() if len(kinds) == 1 else None
    column = None if kind is None else _column(kind, items, arrays)
    return _repeated(items, arrays) if column is None else column


def _column(kind: type, items: list[Any], arrays: list[np.ndarray]) -> Tree | None:
    """Items of one type as arrays, or None where they do not have the same shape."""
    if kind is float or (kind is int and all(-(2**63) <= item < 2**63 for item in items)):
        return {"numbers": _aside(np.array(items, dtype=kind), arrays)}
    if kind is np.ndarray and len({(item.dtype, item.shape) for item in items}) == 1:
        return {"stack": _aside(np.stack(items), arrays)}
    if kind is tuple and len({len(item) for item in items}) == 1 and items[0]:
        return {"tuples": [_items(column, arrays) for column in zip(*items, strict=True)]}
    if is_dataclass(kind):
        names = _field_names(kind)
        columns = {name: _items([getattr(item, name) for item in items], arrays) for name in names}
        return {"rows": _class_name(kind), "columns": columns}
    return None


def _repeated(items: list[Any], arrays: list[np.ndarray]) -> Tree:
    """Items of any kind, each different one once where many are the same."""
    before = len(arrays)
    written: dict[object, tuple[Tree, str]] = {}
    both = [_with_text(item, arrays, written) for item in items]
    trees = [tree for tree, _ in both]
    if len(arrays) > before:  # an array is never the same as another
        return trees
    position: dict[str, int] = {}
    codes = [position.setdefault(text, len(position)) for _, text in both]
    if 2 * len(position) > len(items):
        return trees
    return {"codes": _aside(np.array(codes), arrays), "values": [json.loads(text) for text in position]}


def _with_text(
    item: Any, arrays: list[np.ndarray], written: dict[object, tuple[Tree, str]]
) -> tuple[Tree, str]:
    """A tree and its JSON; of words, choices and what is empty each is made once, and kept in `written`."""
    is_words = type(item) is tuple and all(type(part) is str for part in item)
    key: object = None
    if is_words or type(item) is str or isinstance(item, Enum):
        key = type(item), item  # with the type: some choices equal their text
    elif isinstance(item, Mapping) and not item:
        key = type(item)
    if key in written:
        return written[key]
    tree = _tree(item, arrays)
    made = tree, json.dumps(tree)
    if key is not None:
        written[key] = made
    return made


def _aside(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    if array.dtype.hasobject:
        raise TypeError("an array of objects cannot be written")
    arrays.append(array)
    return len(arrays) - 1


def _value(tree: Tree, arrays: Sequence[np.ndarray]) -> Any:
    """The value that a tree describes."""
    if not isinstance(tree, dict):
        return tree
    if "enum" in tree:
        return _class(tree["enum"])[tree["name"]]
    if "array" in tree:
        array = arrays[tree["array"]]
        return array[()] if tree["scalar"] else array
    if "map" in tree:
        keys, values = (_sequence(part, arrays) for part in tree["map"])
        return dict(zip(keys, values, strict=True))
    if "of" in tree:
        parts = {name: _value(part, arrays) for name, part in tree["fields"].items()}
        return _class(tree["of"])(**parts)
    (name, items), *_ = tree.items()
    return SEQUENCES[name](_sequence(items, arrays))


SEQUENCES: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "list": list}


def _sequence(tree: Tree, arrays: Sequence[np.ndarray]) -> list[Any]:
    """The items that `_items` described."""
    if isinstance(tree, list):
        return [_value(item, arrays) for item in tree]
    if "numbers" in tree:
        return list(arrays[tree["numbers"]].tolist())
    if "stack" in tree:
        return list(arrays[tree["stack"]])
    if "tuples" in tree:
        return list(zip(*(_sequence(column, arrays) for column in tree["tuples"]), strict=True))
    if "rows" in tree:
        made = _class(tree["rows"])
        names = list(tree["columns"])
        columns = [_sequence(tree["columns"][name], arrays) for name in names]
        return [made(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    values = [_value(item, arrays) for item in tree["values"]]
    return [values[code] for code in arrays[tree["codes"]].tolist()]


def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(_init_fields(kind))


def _init_fields(kind: Any) -> Iterator[str]:
    for entry in fields(kind):
        if entry.init:
            yield entry.name


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(PACKAGE):
        raise TypeError(f"only values can be written, got a {name}")
    return name


def _class(name: str) -> Any:
    """A dataclass or enumeration of this package; nothing else that lies there."""
    module, _, attribute = name.partition(":")
    if not name.startswith(PACKAGE):
        raise ValueError(f"{name} is no value")
    attribute_class = getattr(import_module(module), attribute)
    if not isinstance(attribute_class, type) or not (
        is_dataclass(attribute_class) or issubclass(attribute_class, Enum)
    ):
        raise ValueError(f"{name} is no value")
    return attribute_class
