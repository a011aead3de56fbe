"""A lane inside bubblewrap: namespaces of its own, and no files but the interpreter's."""

import os
import shutil
from pathlib import Path

from score.isolation.lockdown import CAPABILITIES, permitted_capabilities

LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def wrap(command: list[str], folders: list[str]) -> list[str]:
    """The command inside new namespaces: no network, no other processes, no /proc, nothing writable."""
    bwrap = shutil.which("bwrap") or "bwrap"
    arguments = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
                 "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    # Root needs no user namespace, and inside one its processes would still be root's to the host; instead
    # the lane keeps the right to become nobody, and does.
    if os.geteuid() == 0:
        held = permitted_capabilities()
        for name, bit in CAPABILITIES.items():
            arguments += ["--cap-add", name] if held & bit else []
    else:
        arguments += ["--unshare-user"]
    for folder in LIBRARY_FOLDERS:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for folder in ("/etc/ld.so.cache", *links_to(command[0]), *folders):
        if not folder.startswith(tuple(f"{library}/" for library in LIBRARY_FOLDERS)):
            arguments += ["--ro-bind-try", folder, folder]
    return [*arguments, "--chdir", "/", *command]


def links_to(executable: str) -> list[str]:
    """Folders of the symbolic links that lead to the interpreter."""
    path, folders = Path(executable), []
    while path.is_symlink():
        folders.append(str(path.parent))
        path = path.parent / path.readlink()
    return [*folders, str(path.parent)]
