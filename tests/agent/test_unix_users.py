"""As which Unix users jobs run."""

import os
import pwd
from pathlib import Path

import pytest

from stretto.agent.unix_users import Account, read_accounts
from stretto.model import InputError
from stretto.service.backend_registry import backend_options
from stretto.service.config import Config

UNNAMED = 61_007


def test_without_a_word_jobs_run_as_the_service() -> None:
    assert read_accounts([]) is None


def test_a_user_may_run_as_a_number_that_has_no_name() -> None:
    accounts = read_accounts([f"ada={UNNAMED}", f"bob={UNNAMED}:5"])
    assert accounts is not None
    assert accounts.of("ada") == Account(UNNAMED, UNNAMED)
    assert accounts.of("bob") == Account(UNNAMED, 5)


def test_a_user_may_run_as_a_user_of_the_machine_with_all_its_groups() -> None:
    found = next(each for each in pwd.getpwall() if each.pw_uid)
    for said in (["ada=" + found.pw_name], [f"ada={found.pw_uid}"]):
        accounts = read_accounts(said)
        assert accounts is not None
        account = accounts.of("ada")
        assert (account.uid, account.gid, account.home) == (found.pw_uid, found.pw_gid, found.pw_dir)
        assert set(account.groups) == set(os.getgrouplist(found.pw_name, found.pw_gid))


def test_users_may_run_as_those_of_the_same_name() -> None:
    found = next(each for each in pwd.getpwall() if each.pw_uid)
    accounts = read_accounts(["user", f"ada={UNNAMED}"])
    assert accounts is not None
    assert (accounts.of(found.pw_name).uid, accounts.of("ada").uid) == (found.pw_uid, UNNAMED)
    with pytest.raises(InputError, match="jobs never run as root"):
        accounts.of("root")
    for number in (str(UNNAMED), str(found.pw_uid), f"{found.pw_uid}:0"):
        with pytest.raises(InputError, match=f"this machine has no user '{number}'"):
            accounts.of(number)  # it is a name here, of whoever may choose one
    with pytest.raises(InputError, match="this machine has no user 'nobody-here'"):
        accounts.of("nobody-here")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["ada"], "--run-as ada: expected user, NAME=UNIX-USER or NAME=UID"),
        (["=5"], "--run-as =5: expected user"),
        (["ada="], "--run-as ada=: expected user"),
        (["ada=0"], "--run-as ada=0: jobs never run as root"),
        (["ada=61007:0"], "--run-as ada=61007:0: jobs never run with root's group"),
        (["ada=root"], "--run-as ada=root: jobs never run as root"),
        (["ada=nobody-here"], "--run-as ada=nobody-here: this machine has no user 'nobody-here'"),
        (["ada=5:"], "--run-as ada=5:: expected UID or UID:GID"),
        (["ada=5:x"], "expected UID or UID:GID"),
        (["ada=4294967295"], "expected UID or UID:GID of at most 4294967294"),
        (["ada=5", "ada=6"], "--run-as ada=6: ada was given 5 before"),
    ],
)
def test_what_names_no_account_is_refused_in_a_line(said: list[str], why: str) -> None:
    with pytest.raises(InputError) as refused:
        read_accounts(said)
    assert why in str(refused.value)


def test_where_users_cannot_be_told_apart_there_are_no_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match="--run-as: means something with --backend local only"):
        backend_options("slurm", {"--run-as": ("user",)})
    options = backend_options("local", {"--run-as": ("user",)})
    with pytest.raises(InputError, match="--run-as: not with --insecure-loopback"):
        Config(state=tmp_path, backend=options, open_on_loopback=True)


def test_only_root_becomes_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="--run-as: only root can run jobs as other users"):
        backend_options("local", {"--run-as": ("user",)})
