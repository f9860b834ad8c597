"""`stretto backup` and `stretto restore`: a service as one file, and a service from one."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli import options
from stretto.cli.printing import say, show_json, show_line
from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.service.backup import Manifest

State = Annotated[Path, typer.Option("--state", help="The state directory, as of `stretto serve`.")]
StoreUrl = Annotated[
    str, typer.Option("--store", help="URL of a database; else a SQLite file in the state directory.")
]
Archive = Annotated[Path, typer.Argument(help="The file of the backup.", metavar="FILE")]


def backup(
    archive: Archive,
    state: State = Path("stretto-state"),
    store: StoreUrl = "",
    uploads: Annotated[
        Path | None,
        typer.Option(help="Where uploads are, as of `stretto serve`; else in the state directory."),
    ] = None,
    without_uploads: Annotated[
        bool, typer.Option("--without-uploads", help="Leave uploads out, where they are too large.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Back a service up into one file, also while it runs; checkpoints and logs of jobs are not in it."""
    _check_service()
    if uploads is not None and without_uploads:
        raise InputError(f"--uploads {uploads}: expected it without --without-uploads")
    if uploads is not None and not uploads.is_dir():
        raise InputError(f"--uploads {uploads}: expected the directory that `stretto serve` was told")
    from stretto.service.backup import write_backup
    from stretto.service.uploads import UPLOADS

    where = None if without_uploads else uploads or state / UPLOADS
    _show(write_backup(state, store, archive, where), as_json)
    say(f"written to {archive}; it holds a key: keep it as safe as the state directory")


def restore(
    archive: Archive,
    state: State = Path("stretto-state"),
    store: StoreUrl = "",
    as_json: options.Json = False,
) -> None:
    """Make a state directory, and with --store a database, from the file of a backup."""
    _check_service()
    from stretto.service.backup import restore_backup

    _show(restore_backup(archive, state, store), as_json)
    say(f"restored to {state}: start `stretto serve --state {state}`" + (" --store …" if store else ""))


def _check_service() -> None:
    """Raise InputError where the packages of a service are not installed."""
    try:
        import sqlalchemy  # noqa: F401
    except ModuleNotFoundError as missing:
        raise InputError(f"this needs {missing.name}: install stretto[serve]") from None


def _show(manifest: "Manifest", as_json: bool) -> None:
    if as_json:
        shown = {"events": manifest.events, "version": manifest.version, "unix_s": manifest.unix_s}
        show_json({**shown, "upload_files": manifest.upload_files})
        return
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.unix_s))
    show_line(f"{manifest.events} events, each as it was written; made {made} by stretto {manifest.version}")
    if manifest.upload_files:
        show_line(f"{manifest.upload_files} files of uploads")
