"""Options of `stretto serve` about uploads."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stretto.service.uploads import UploadLimits

MOST_UPLOAD_BYTES = 10**12


@dataclass(frozen=True)
class Uploads:
    """What jobs bring along: where it is kept, and how much it may be."""

    uploads: Annotated[
        Path | None,
        typer.Option(
            help="Where uploads are kept, for a standby where both see it; else in the state directory.",
            metavar="DIRECTORY",
        ),
    ] = None
    max_upload_size: Annotated[str, typer.Option(help="Limit of one upload, like 500MB or 2GiB.")] = "500MB"
    max_upload_file_size: Annotated[str, typer.Option(help="Limit of one file of an upload.")] = "200MB"
    max_uploads_per_user: Annotated[str, typer.Option(help="Limit of all uploads of one user together.")] = (
        "5GB"
    )

    def limits(self, keep: str) -> "UploadLimits":
        """How much may be uploaded, and how long it is kept. Raises InputError."""
        from stretto.errors import InputError
        from stretto.jobfile.quantities import duration_s
        from stretto.service.uploads import UploadLimits

        try:
            keep_s = duration_s(keep)
        except ValueError:
            raise InputError(f"--keep-uploads {keep}: expected a duration like 7d or 12h") from None
        return UploadLimits(
            _bytes_of("--max-upload-size", self.max_upload_size),
            _bytes_of("--max-upload-file-size", self.max_upload_file_size),
            _bytes_of("--max-uploads-per-user", self.max_uploads_per_user),
            keep_s,
        )


def _bytes_of(option: str, text: str) -> int:
    """A size in bytes. Raises InputError."""
    from stretto.errors import InputError
    from stretto.jobfile.quantities import memory_gb

    try:
        size = round(memory_gb(text) * 1e9)
    except (ValueError, OverflowError):
        size = 0
    if not 0 < size <= MOST_UPLOAD_BYTES:
        raise InputError(f"{option} {text}: expected a size above 0, like 500MB or 2GiB, of at most 1000GB")
    return size
