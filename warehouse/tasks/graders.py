"""Packages that grade tasks of some kinds: `score` needs them installed; nothing is imported to check."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

# By kind of task: the package, with a version that is part of the scorer's identity, and how to install it.
GRADERS = {"math": ("math-verify", "pip install 'rollhouse[math]'")}


def grader_versions(kinds: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Versions of the packages that grade tasks of the kinds, and a sentence for each that is missing."""
    versions, missing = {}, []
    for kind in sorted(GRADERS.keys() & set(kinds)):
        package, install = GRADERS[kind]
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing.append(f"Tasks of kind {kind} are graded by {package}, which is not installed. "
                           f"Run {install}.")
    return versions, missing
