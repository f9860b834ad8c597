"""An image of the service as `deploy/Containerfile` describes it, made without a builder or a registry.

It has this machine's Python, the packages that `deploy/requirements.txt` names, in the versions that tests
have, and the package of Stretto. There is nothing else but the libraries that these need, and busybox.
"""

import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.backends.kubernetes import control_plane
from tests.backends.kubernetes.real_nodes import LINKS, ROOT, add, save_image

NAME = "docker.io/library/stretto:0.1.0"  # what a runtime makes of the name in the bases
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = f"opt/stretto/lib/{VERSION}/site-packages"
BUILD_ONLY = {"hatchling", "tomlkit", "trove-classifiers", "pathspec", "pluggy"}  # what makes the wheel
LEFT_OUT = {"test", "idlelib", "tkinter", "ensurepip", "site-packages", "lib2to3", "turtledemo"}
LIBRARIES = "usr/lib/x86_64-linux-gnu"
COMMANDS = ("cat", "id", "ls", "sh", "touch")  # of those that an image of Debian has
FILE = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")


def said(pattern: str) -> str:
    """What the Containerfile says, of which there is one."""
    (found,) = re.findall(pattern, FILE, re.MULTILINE)
    return str(found)


def write_service_image(path: Path) -> None:
    """The image, as docker saves it."""
    layer, user = path.with_suffix(".layer"), said(r"^USER (\S+)$")
    with tarfile.open(layer, mode="w") as archive:
        _write_base(archive, *user.split(":"))
        _write_python(archive)
        for distribution in _distributions():
            for file in distribution.files or ():
                if ".." not in file.parts and (source := Path(str(file.locate()))).is_file():
                    archive.add(source, f"{PACKAGES}/{file}")
        _write_stretto(archive, path.parent)
    save_image(
        path,
        NAME,
        layer,
        {
            "User": user,
            "Env": [
                "PATH=/opt/stretto/bin:/usr/local/bin:/usr/bin:/bin",
                *said(r"^ENV PATH=\S+ (.+)$").split(),
            ],
            "Entrypoint": [said(r'^ENTRYPOINT \["(\w+)"\]$')],
            "Cmd": ["serve", "--help"],
        },
    )


def _write_base(archive: tarfile.TarFile, uid: str, gid: str) -> None:
    """Folders, busybox and the user."""
    for name in ("usr", "proc", "sys", "dev", "etc", "var", "run", "root", "tmp", "usr/bin", "usr/lib64"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        archive.addfile(entry)
    links = {**LINKS, **{f"usr/bin/{command}": "busybox" for command in COMMANDS}}
    for name, target in links.items():
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        archive.addfile(entry)
    busybox = (control_plane.FOLDER / "bin" / "busybox").read_bytes()
    add(archive, "usr/bin/busybox", busybox, 0o755)
    add(archive, "etc/nsswitch.conf", b"hosts: files dns\n")
    add(archive, "etc/passwd", f"root:x:0:0::/root:/bin/sh\nstretto:x:{uid}:{gid}::/tmp:/bin/sh\n".encode())
    add(archive, "etc/group", f"root:x:0:\nstretto:x:{gid}:\n".encode())


def _write_python(archive: tarfile.TarFile) -> None:
    """The interpreter with its library, and what these and the packages are linked with."""
    library = Path(sys.base_prefix) / "lib" / VERSION

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        below = Path(entry.name).relative_to(f"usr/local/lib/{VERSION}").parts
        is_left_out = below and (below[0] in LEFT_OUT or below[0].startswith("config-"))
        return None if is_left_out else entry

    program = Path(sys.base_prefix, "bin", VERSION).resolve()
    archive.add(program, f"usr/local/bin/{VERSION}")
    archive.add(library, f"usr/local/lib/{VERSION}", filter=wanted)
    compiled = [*(library / "lib-dynload").glob("*.so")]
    for distribution in _distributions():
        compiled += [Path(str(each.locate())) for each in distribution.files or () if ".so" in each.name]
    for name, source in _linked([program, *compiled]).items():
        place = "usr/lib64" if name.startswith("ld-linux") else LIBRARIES
        archive.add(source.resolve(), f"{place}/{name}")


def _linked(files: list[Path]) -> dict[str, Path]:
    """Libraries of this machine that some files need, by name; not those that packages bring along."""
    text = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False).stdout
    paths = {Path(each) for each in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", text, re.MULTILINE)}
    return {path.name: path for path in paths if "site-packages" not in path.parts}


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Packages that an image has."""
    text = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8")
    for name in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==", text, re.MULTILINE):
        if name not in BUILD_ONLY:
            yield importlib.metadata.distribution(name)


def _write_stretto(archive: tarfile.TarFile, folder: Path) -> None:
    """Stretto's own package with its commands, in an environment of its own."""
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *command], check=True)
    (wheel,) = folder.glob("stretto-*.whl")
    unpacked = folder / "wheel"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(unpacked)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-s", unpacked, unpacked], check=True)
    archive.add(unpacked, PACKAGES)
    (scripts,) = unpacked.glob("*.dist-info/entry_points.txt")
    entries = configparser.ConfigParser(delimiters="=")
    entries.read(scripts)
    shutil.rmtree(unpacked)
    for name, target in entries["console_scripts"].items():
        module, _, function = target.partition(":")
        script = f"#!/opt/stretto/bin/python\nfrom {module} import {function}\n{function}()\n"
        add(archive, f"opt/stretto/bin/{name}", script.encode(), 0o755)
    add(archive, "opt/stretto/pyvenv.cfg", b"home = /usr/local/bin\ninclude-system-site-packages = false\n")
    entry = tarfile.TarInfo("opt/stretto/bin/python")
    entry.type, entry.linkname = tarfile.SYMTYPE, f"/usr/local/bin/{VERSION}"
    archive.addfile(entry)
