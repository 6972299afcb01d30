"""Put the application into the wheel, inside of the package: one name for the world.

ZenML knows steps and materializers by their modules below one folder, so that the
packages beside `dptune` keep their names; `dptune.command` finds that folder. Editable
installs copy nothing: there it is the repository.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGES = ("cli", "configs", "infra", "materializers", "pipelines", "steps")
HERE = Path(__file__).parent


class BuildWithApplication(build_py):
    """Copies the application beside the library's modules."""

    def run(self) -> None:
        """Build the package, then copy what runs it."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "dptune" / "_application"
        shutil.rmtree(target, ignore_errors=True)  # what an earlier build left
        for name in PACKAGES:
            shutil.copytree(
                HERE / name,
                target / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"),
            )
        shutil.copy2(HERE / "run.py", target / "run.py")


setup(cmdclass={"build_py": BuildWithApplication})
