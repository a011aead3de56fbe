"""`make test-all` fails when a test could not run, but for want of what the Makefile excepts."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
def test_without_a_gpu():
    pytest.skip("needs a GPU")
def test_without_a_browser():
    pytest.skip("needs Chromium")
"""


def test_only_skips_that_the_makefile_names_are_forgiven(tmp_path: Path) -> None:
    excepted, = re.findall(r"^MAY_SKIP \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    (tmp_path / "test_two.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text('import pytest\npytest.importorskip("nowhere")\n')
    (tmp_path / "test_excepted.py").write_text('import pytest\npytest.skip("ray is not installed", '
                                               "allow_module_level=True)\n")
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.conftest", "-q",
               "--continue-on-collection-errors", f"--skips-fail={excepted}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert "test_without_a_browser was not run: Skipped: needs Chromium" in done.stdout
    assert "test_file.py was not run: Skipped: could not import 'nowhere'" in done.stdout
    assert "1 failed, 2 skipped, 1 error" in done.stdout
    assert "not run: 1 x needs a GPU" in done.stdout and "not run: 1 x ray is not installed" in done.stdout
