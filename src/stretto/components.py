"""Components by name: policies, estimators, and what else another package may add.

One of this package is a line in its registry. One of another package is an entry point of the registry's
group. Where the registry allows it, one in a file of one's own is named `path/to/file.py:Class`, any other
`module:Class`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from stretto.errors import InputError
from stretto.settings import settings_of
from stretto.suggestions import did_you_mean, nearest


@dataclass(frozen=True)
class Registry:
    """The components of one kind: dataclasses whose fields are their settings."""

    kind: str  # what messages call one: "policy"
    ours: Mapping[str, str]  # `module:Class` by name
    group: str  # of entry points
    space: str  # of settings: `policy.` in `--set policy.round_s=60`
    required: tuple[str, ...]  # members without which a class is no such component
    installed_only: bool = False  # a name may come from afar, and must not make code of any file run

    def names(self) -> tuple[str, ...]:
        """Every registered name, in alphabetical order; ours win over another package's."""
        return tuple(sorted({**self._announced(), **self.ours}))

    def load(self, name: str, /, **settings: object) -> Any:
        """A component by its registered name, `module:Class` or `path/to/file.py:Class`, some fields set.

        Settings may be texts, as they come from a command line. Raises InputError for an unknown name or
        setting, for a wrong value, and for a class that is no such component. A value is wrong by its type or
        its range.
        """
        component = self.class_of(name)
        values = settings_of(component, settings, space=self.space)
        for entry in fields(component):
            if entry.init and entry.default is entry.default_factory is MISSING and entry.name not in values:
                setting = f"{self.space}.{entry.name}"
                raise InputError(f"{self.kind} {name!r} has no default for {setting}: it must be set")
        return component(**values)

    def class_of(self, name: str) -> type:
        """The dataclass behind a name; InputError where there is none."""
        target = self.ours.get(name) or self._announced().get(name) or ("" if self.installed_only else name)
        if target.endswith(".py") and not self.installed_only:
            raise InputError(f"{self.kind} {name!r}: expected its class behind it, {name}:Class")
        if ":" not in target:
            names = self.names()
            hint = did_you_mean(name, names)
            listed = "" if hint.startswith("expected") else f"; there are {', '.join(names)}"
            others = "" if self.installed_only else ", and module:Class or path/to/file.py:Class"
            raise InputError(f"unknown {self.kind} {name!r}, {hint}{listed}{others}")
        where, _, attribute = target.rpartition(":")
        module = self._module(where)
        component = getattr(module, attribute, None)
        if not (inspect.isclass(component) and is_dataclass(component)):
            near = _near(module, attribute)
            raise InputError(f"{self.kind} {name!r}: expected a dataclass {attribute!r} in {where}{near}")
        lacks = [part for part in self.required if not hasattr(component, part)]
        if lacks:
            raise InputError(f"{name!r} is no {self.kind}: {attribute} has no {', '.join(lacks)}")
        return component

    def _announced(self) -> dict[str, str]:
        """`module:Class` by name, as installed packages announce them."""
        return {point.name: point.value for point in entry_points(group=self.group)}

    def _module(self, where: str) -> ModuleType:
        if where.endswith(".py"):
            return _module_in_file(Path(where), self.kind)
        try:
            return importlib.import_module(where)
        except Exception as error:  # whatever the module itself does while it is imported
            words = f"{type(error).__name__}: {error}"
            raise InputError(f"{self.kind} module {where!r} cannot be imported: {words}") from error


def _near(module: ModuleType, attribute: str) -> str:
    """Which dataclass of a module may have been meant, as the end of a message; "" where none is like it."""
    own = [name for name, each in vars(module).items() if is_dataclass(each) and inspect.isclass(each)]
    meant = nearest(attribute, own)
    return f", did you mean {meant!r}?" if meant else ""


def _module_in_file(path: Path, kind: str) -> ModuleType:
    """The module in a file; the same one as long as the file's content stays the same."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{kind} file {path} cannot be read: {error.strerror}") from error
    name = f"stretto_{kind}_{path.stem}_{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{kind} file {path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        # An interrupt or an exit is not the file's fault, and goes on up.
        if not isinstance(error, Exception):
            raise
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == spec.origin]
        where = f" (line {lines[-1]})" if lines else ""
        raise InputError(
            f"{kind} file {path} cannot be imported: {type(error).__name__}: {error}{where}"
        ) from error
    return module
