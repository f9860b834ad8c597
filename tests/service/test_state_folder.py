"""A state directory is its owner's alone to write to, or the service does not begin."""

import os
from pathlib import Path

import pytest

from stretto.model import InputError
from stretto.service.main import check_own


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_state_directory_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(InputError, match=f"only its owner may write to, such as mode 700, got mode {mode:o}"):
        check_own(tmp_path)


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755])
def test_one_that_others_may_only_look_into_is_used(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    check_own(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(InputError, match="of user 0, who starts the service, got one of user 12345"):
        check_own(folder)
