"""Measured profiles as a library of models, read from a directory with one folder per model."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto.errors import InputError
from stretto.sim.truth.profile_facts import GPU_TYPE_OF_SUFFIX, facts_of
from stretto.sim.truth.profile_files import read_validation
from stretto.sim.truth.profiled import ProfiledModel

_PLACEMENTS_NAME = re.compile(r"placements-(.+)\.csv")


@dataclass(frozen=True, eq=False)
class ProfileLibrary:
    """Models by name; each is read when first asked for, and its GPU types when they are."""

    directory: Path
    folders: Mapping[str, Path]  # model -> its folder
    _models: dict[str, ProfiledModel] = field(default_factory=dict, init=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The models there are, by name."""
        return tuple(sorted(self.folders))

    def model(self, name: str) -> ProfiledModel:
        """One model. Raises InputError for an unknown name or bad files."""
        if name not in self._models:
            if name not in self.folders:
                known = ", ".join(self.names)
                raise InputError(f"{self.directory}: no profile of model {name!r}, expected one of {known}")
            self._models[name] = _read_model(name, self.folders[name])
        return self._models[name]

    def read(self, models: Iterable[str], gpu_types: Iterable[str]) -> None:
        """Read now what a run will ask for, so that bad files are found before it starts.

        A model that was not profiled on one of the types is no error: it cannot run there.
        """
        wanted = sorted(set(gpu_types))
        for name in sorted(set(models)):
            model = self.model(name)
            for gpu_type in wanted:
                if gpu_type in model.files:
                    model.on(gpu_type)


def read_profiles(directory: Path | str) -> ProfileLibrary:
    """The models in `directory`: its folders with a `placements-<gpu>.csv`. Raises InputError if none.

    A folder holds `placements-<gpu>.csv` and optionally `scalability-<gpu>.csv` per GPU type, and
    `validation-<batch>.csv` per total batch size. This looks only at names; contents are read when used.
    """
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"profiles: expected a directory, got {str(root)!r}")
    folders = {folder.name: folder for folder in root.iterdir() if folder.is_dir() and _step_files(folder)}
    if not folders:
        raise InputError(f"{root}: expected folders with placements-<gpu>.csv, found none")
    return ProfileLibrary(root, folders)


def _read_model(name: str, folder: Path) -> ProfiledModel:
    return ProfiledModel(
        name=name, facts=facts_of(name), curves=read_validation(folder), files=_step_files(folder)
    )


def _step_files(folder: Path) -> dict[str, tuple[Path, Path | None]]:
    """GPU type -> its placements and scalability file."""
    files: dict[str, tuple[Path, Path | None]] = {}
    for path in sorted(folder.iterdir()):
        match = _PLACEMENTS_NAME.fullmatch(path.name)
        if match is not None:
            scalability = folder / f"scalability-{match[1]}.csv"
            gpu_type = GPU_TYPE_OF_SUFFIX.get(match[1], match[1])
            files[gpu_type] = (path, scalability if scalability.is_file() else None)
    return files
