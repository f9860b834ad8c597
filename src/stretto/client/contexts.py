"""Named services in a file of the user's: where each is, with which token, and which is the present one.

The file is `$STRETTO_CONFIG`, else `stretto/config.yaml` below `$XDG_CONFIG_HOME`, else below `~/.config`:

    current: lab
    contexts:
      lab:
        url: [https://a.lab.example:8700, https://b.lab.example:8700]
        token_file: ~/.config/stretto/lab.token
        ca_file: ~/lab-ca.pem

It is read only where no URL is given, so that a token goes to no other service than its own.
"""

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from stretto.client.tokens import token_in
from stretto.errors import InputError
from stretto.suggestions import did_you_mean

FILE_VARIABLE, VARIABLE, OPTION = "STRETTO_CONFIG", "STRETTO_CONTEXT", "--context"
MOST_BYTES = 1 << 20  # of a file that people write; chosen
LONGEST_NAME = 100  # characters; chosen


@dataclass(frozen=True, slots=True)
class Context:
    """A service, and how its user is known there."""

    url: tuple[str, ...]  # of the same service: where the first does not answer, the next one may
    token: str = ""
    token_file: str = ""  # instead of the token itself
    ca_file: str = ""  # certificates of the authorities that certify the service; "": the system's

    @property
    def addresses(self) -> str:
        """All of its addresses in one text, as a client takes them."""
        return ",".join(self.url)

    @property
    def authorities(self) -> str:
        """The file with its authorities; "" for those of the system."""
        return str(Path(self.ca_file).expanduser()) if self.ca_file else ""

    def its_token(self) -> str:
        """The token; "" for none. Raises InputError where its file has none."""
        return token_in(Path(self.token_file).expanduser(), "token_file") if self.token_file else self.token

    def as_entries(self) -> dict[str, Any]:
        """What a file says of it: nothing of what is not set."""
        entries = {key: value for key, value in asdict(self).items() if value}
        return {**entries, "url": self.url[0] if len(self.url) == 1 else list(self.url)}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of a user; `current` is one of them, or "" for none."""

    current: str = ""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str, option: str) -> Context:
        """The context of a name. Raises InputError, which says which option named it."""
        if name not in self.by_name:
            hint = did_you_mean(name, self.by_name) if self.by_name else f"{file()} has none"
            raise InputError(f"{option} {name}: no context has this name; {hint}")
        return self.by_name[name]

    def with_context(self, name: str, context: Context) -> "Contexts":
        """These and one more, or one that is changed; the first one is the current one."""
        return replace(self, current=self.current or name, by_name={**self.by_name, name: context})

    def without(self, name: str) -> "Contexts":
        """All but one. If that was the current one, none is."""
        rest = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts("" if name == self.current else self.current, rest)


def file() -> Path:
    """Where the contexts of this user are."""
    if named := os.environ.get(FILE_VARIABLE, ""):
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME", "") or "~/.config"
    return Path(home).expanduser() / "stretto" / "config.yaml"


def present() -> Context | None:
    """The context that STRETTO_CONTEXT names, else the current one; None for none. Raises InputError."""
    contexts = read()
    if name := os.environ.get(VARIABLE, ""):
        return contexts.named(name, VARIABLE)
    return contexts.named(contexts.current, "current") if contexts.current else None


def read() -> Contexts:
    """All contexts; none where no file is. Raises InputError for what is not a file of contexts."""
    path = file()
    try:
        with path.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as wrong:
        raise InputError(f"{path}: cannot be read: {wrong.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path}: expected at most {MOST_BYTES} bytes")
    try:
        return _contexts_in(yaml.safe_load(content.decode()) or {})
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise InputError(f"{path}: expected YAML: {' '.join(str(wrong).split())}") from None
    except InputError as wrong:
        raise InputError(f"{path}: {wrong}") from None


def write(contexts: Contexts) -> Path:
    """Keep all contexts, for their user alone to read; where they are. Raises InputError."""
    path = file()
    entries = {name: context.as_entries() for name, context in sorted(contexts.by_name.items())}
    text = yaml.safe_dump({"current": contexts.current, "contexts": entries}, sort_keys=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Written beside it and moved: whoever reads meanwhile finds the one or the other, and it is 0600.
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
            Path(beside).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(beside).unlink()
            raise
    except OSError as wrong:
        raise InputError(f"{path}: cannot be written: {wrong.strerror}") from None
    return path


def checked_name(name: str) -> str:
    """A name that a context may have. Raises InputError."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise InputError(f"expected a name for a context, got {name!r}")
    return name


def _contexts_in(tree: object) -> Contexts:
    entries = _section(tree, "the file", ("current", "contexts"))
    listed = _section(entries.get("contexts") or {}, "contexts")
    by_name = {checked_name(name): _context_in(below, name) for name, below in listed.items()}
    current = _text(entries.get("current") or "", "current")
    if current and current not in by_name:
        raise InputError(f"current: {current}: no context has this name")
    return Contexts(current, by_name)


def _context_in(tree: object, name: str) -> Context:
    known = ("url", "token", "token_file", "ca_file")
    entries = _section(tree, f"context {name}", known)
    url = entries.pop("url", None)
    urls = url if isinstance(url, list) else [url]
    texts = {key: _text(value, f"context {name}: {key}") for key, value in entries.items()}
    if not url or not all(isinstance(address, str) and address for address in urls):
        raise InputError(f"context {name}: url: expected the address of a service, or a list of them")
    return Context(tuple(urls), **texts)


def _section(tree: object, what: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise InputError(f"{what}: expected keys and values")
    for key in tree:
        if known is not None and key not in known:
            raise InputError(f"{what}: {key} is no key; {did_you_mean(key, known)}")
    return dict(tree)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{what}: expected a text, got {value!r}")
    return value
