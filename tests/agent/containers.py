"""A stand-in for apptainer, and a folder that a real one takes for an image."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

# As apptainer does, it stays beside the command that it runs, and passes signals on to it. The variable that
# names folders to it lists, inside, all folders by where they are seen there; one named twice is a warning.
PROGRAM = """#!{python} -IS
import json, os, signal, sys
from pathlib import Path
words = sys.argv[1:]
with Path({notes!r}).open("a") as notes:
    notes.write(json.dumps(words) + "\\n")
assert words.pop(0) == "exec", words
binds, folder = [], "/"
while words[0].startswith("--"):
    option = words.pop(0)
    if option == "--bind":
        binds.append(words.pop(0))
    elif option == "--pwd":
        folder = words.pop(0)
image = words.pop(0)
if "missing" in image:
    print("INFO:    looking for it", file=sys.stderr)
    print(f"\\x1b[31mFATAL:   could not open image {{image}}\\x1b[0m", file=sys.stderr)
    sys.exit(255)
env = {{**os.environ, "IMAGE": image}}
seen = [each.split(":")[-1] for each in [*binds, *filter(None, env.get("APPTAINER_BIND", "").split(","))]]
for each in {{each for each in seen if seen.count(each) > 1}}:
    print(f"WARNING: bind mounting {{each}}: it is already in the mount point list", file=sys.stderr)
env["APPTAINER_BIND"] = env["SINGULARITY_BIND"] = ",".join(dict.fromkeys(seen))
for name in ("PATH", "LD_LIBRARY_PATH"):
    env.pop(name, None)
    if f"APPTAINERENV_{{name}}" in env:
        env[name] = env.pop(f"APPTAINERENV_{{name}}")
env.setdefault("PATH", "/usr/bin:/bin")
child = os.fork()
if child == 0:
    os.chdir(folder)
    os.execvpe(words[0], words, env)
os.chdir("/")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""


def stand_in(folder: Path, name: str = "apptainer") -> Path:
    """A program of that name below a folder; it writes what it is called with beside itself."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(PROGRAM.format(python=sys.executable, notes=str(folder / "called")))
    program.chmod(0o755)
    return program


def real_apptainer(environment: Mapping[str, str] = os.environ) -> str | None:
    """The real one, if this machine has it."""
    return shutil.which("apptainer", path=environment.get("PATH"))


def an_image(folder: Path) -> Path:
    """A folder that apptainer runs as an image: with the programs of this machine, where it sees /usr."""
    for name in ("proc", "sys", "dev", "tmp", "etc", "root", "home", "usr", "run", "var/tmp"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "resolv.conf", "hosts", "localtime", "of-the-image"):
        (folder / "etc" / name).touch()
    return folder
