"""Pages of the repository as pages of the site: those of docs/, and those outside that they link to."""

import re
import shutil
from pathlib import Path, PurePosixPath

# Pages that stand elsewhere in the repository, by their place on the site.
FROM_ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "benchmarks.md",
}
FILES = "files"  # the folder of what is no page, as sources that pages link to
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^```.*?^```)", flags=re.M | re.S)


def gather(root: Path, into: Path) -> list[PurePosixPath]:
    """Copy all pages below a folder, their links adapted; the pages, by their place there."""
    places = {
        path.relative_to(root): path.relative_to(root / "docs") for path in (root / "docs").rglob("*.md")
    }
    places |= {Path(there): Path(here) for there, here in FROM_ELSEWHERE.items() if (root / there).exists()}
    for source, place in places.items():
        text = (root / source).read_text(encoding="utf-8")
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        (into / place).write_text(_adapted(text, source, place, places, root, into), encoding="utf-8")
    return sorted(PurePosixPath(place) for place in places.values())


def _adapted(text: str, source: Path, place: Path, places: dict[Path, Path], root: Path, into: Path) -> str:
    """A page whose links lead to where the pages and files of the repository are on the site."""

    def elsewhere(link: re.Match[str]) -> str:
        target = _within(root, root / source.parent / link["path"])
        if target in places:
            there = places[target]
        elif target is not None and (root / target).is_file():
            there = target.relative_to("docs") if target.parts[0] == "docs" else Path(FILES) / target
            shutil.copyfile(root / target, _made(into / there))
        else:  # a folder: what it has is in the repository, and the site does not show it
            return link[0]
        return f"{_relative(there, place.parent)}{link['anchor'] or ''}"

    pieces = FENCE.split(text)
    return "".join(piece if piece.startswith("```") else LINK.sub(elsewhere, piece) for piece in pieces)


def _within(root: Path, path: Path) -> Path | None:
    resolved = path.resolve()
    return resolved.relative_to(root.resolve()) if resolved.is_relative_to(root.resolve()) else None


def _relative(path: Path, folder: Path) -> str:
    ups = len([part for part in folder.parts if part != "."])
    return "/".join([*[".."] * ups, *path.parts])


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
