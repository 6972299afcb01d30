"""Where the program lies, where the project is, and what runs leave in it.

A project is a folder with configurations and data; `dptune init` makes one. What runs
leave lies in its `.dptune/`, or wherever `DPTUNE_HOME` points (a volume, in a
container). Deleting that forgets every run, including the record of spent budget.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dptune.errors import ConfigError

if TYPE_CHECKING:  # takes long to import, and few commands ask a model
    from dptune.detection.endpoint import LlmAccess

REPOSITORY: Final = Path(__file__).resolve().parents[1]
"""Where the program's files are: the repository, or their copy inside of the wheel."""
STATE: Final = ".dptune"
"""What runs leave in a project, and what tells a project from any other folder."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Folders of one project.

    Args:
        root: absolute path of the project folder.
    """

    root: Path

    @property
    def zenml(self) -> Path:
        """ZenML's configuration, which is made again where it is gone."""
        return self.root / "zenml"

    @property
    def stores(self) -> Path:
        """Local artifact store, and the databases of ZenML and MLflow inside it."""
        return self.root / "stores"

    @property
    def is_set_up(self) -> bool:
        """Whether anything was ever run here, so that there may be versions."""
        return self.zenml.is_dir() or self.stores.is_dir()

    @property
    def runs(self) -> Path:
        """Checkpoints and ledger journals, one folder per training run."""
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        """What can be made again: pre-trained models, candidate tries."""
        return self.root / "cache"

    @property
    def temporary(self) -> Path:
        """Temporary copies of weights and records; a folder for each process."""
        return self.root / "tmp"

    def make(self) -> None:
        """Make the project folder, if it is absent.

        Raises:
            ConfigError: there is no place for it, or databases in it have no URL.
        """
        self._refuse_question_mark()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError):
            raise ConfigError.at(
                "DPTUNE_HOME",
                f"must be a folder, or a place for one, got {self.root.name}.",
                "Let it name another folder.",
            ) from None

    def _refuse_question_mark(self) -> None:
        """Refuse a place that ends early in the URL of a database.

        Raises:
            ConfigError: what is behind the mark would be left out.
        """
        if "?" in str(self.root):
            raise ConfigError.at(
                "DPTUNE_HOME",
                "must be a path without '?', where URLs of databases end.",
                "Let it name another folder.",
            )

    @contextmanager
    def work(self) -> Iterator[Path | None]:
        """Lend a folder for records while they are read; nothing stays.

        Where no project was none is afterwards. What a killed process leaves goes when
        the next one reads records. None where no folder can be made.
        """
        is_there, folder = self.root.is_dir(), self.root / "work"
        with suppress(OSError):
            self.root.mkdir(mode=0o700, exist_ok=True)
        try:
            yield folder if self.root.is_dir() else None
        finally:
            with suppress(OSError):  # others work in it
                folder.rmdir()
            if not is_there:
                with suppress(OSError):  # likewise
                    self.root.rmdir()

    @property
    def budget_url(self) -> str:
        """The budget store: `DPTUNE_BUDGET_URL`, or a file in the project folder."""
        given = os.environ.get("DPTUNE_BUDGET_URL")
        if not given:
            self._refuse_question_mark()
        return given or f"sqlite:///{self.root / 'budget.db'}"

    @property
    def budget_key_file(self) -> Path:
        """Where the secret lies that names privacy units (`DPTUNE_BUDGET_KEY_FILE`)."""
        given = os.environ.get("DPTUNE_BUDGET_KEY_FILE")
        return Path(given) if given else self.root / "budget.key"

    @property
    def review(self) -> Path:
        """Samples, decisions and keyed lists of detector reviews; no text."""
        return self.root / "review"

    @property
    def review_key_file(self) -> Path:
        """Where the secret lies that names phrases (`DPTUNE_REVIEW_KEY_FILE`)."""
        given = os.environ.get("DPTUNE_REVIEW_KEY_FILE")
        return Path(given) if given else self.root / "review.key"

    @property
    def reports(self) -> Path:
        """Self-contained HTML reports and privacy cards."""
        return self.root / "reports"


def current_workspace() -> Workspace:
    """Return the workspace of this process; nothing is created."""
    return Workspace(
        root=Path(os.environ.get("DPTUNE_HOME") or project_folder() / STATE).resolve()
    )


def project_folder() -> Path:
    """Return the folder of the project that this process works in.

    Inside of a clone that is the clone. Else it is the next folder, from the working
    directory upwards, that holds a `.dptune` of this user's own (another's would decide
    what runs here). Where there is none: the clone that the program is run from, or the
    working directory.
    """
    is_clone, here = (REPOSITORY / "pyproject.toml").is_file(), Path.cwd()
    if is_clone and here.is_relative_to(REPOSITORY):
        return REPOSITORY
    for folder in (here, *here.parents):
        state = folder / STATE
        if state.is_dir() and state.stat().st_uid == os.getuid():
            return folder
    return REPOSITORY if is_clone else here


def configs_folder() -> Path:
    """Return the project's `configs/`, or the program's where it has none."""
    own = project_folder() / "configs"
    return own if own.is_dir() else REPOSITORY / "configs"


def data_root() -> Path:
    """Return the folder that relative data paths start from (`DPTUNE_DATA_ROOT`)."""
    return Path(os.environ.get("DPTUNE_DATA_ROOT") or project_folder()).resolve()


def read_budget_key(workspace: Workspace) -> bytes | None:
    """Read the secret that names privacy units; None where none was made yet.

    It comes from `DPTUNE_BUDGET_KEY` (hexadecimal, such as a mounted secret) or from
    the workspace's key file, which only its owner may read.

    Raises:
        ConfigError: others may read the file, or it holds no key. Never quotes it.
    """
    return _read_key("DPTUNE_BUDGET_KEY", workspace.budget_key_file)


def ensure_budget_key(workspace: Workspace) -> bytes:
    """Read the secret that names privacy units, making it in the project's first run.

    Raises:
        ConfigError: as `read_budget_key`.
    """
    return _ensure_key("DPTUNE_BUDGET_KEY", workspace.budget_key_file)


def read_review_key(workspace: Workspace) -> bytes | None:
    """Read the secret that names reviewed phrases; None where none was made yet.

    It comes from `DPTUNE_REVIEW_KEY` or from the workspace's key file.

    Raises:
        ConfigError: as `read_budget_key`.
    """
    return _read_key("DPTUNE_REVIEW_KEY", workspace.review_key_file)


def keep_review_key(workspace: Workspace, secret: bytes) -> None:
    """Keep the secret that the first review was drawn with.

    Raises:
        ConfigError: another one is there, or as `read_budget_key`.
    """
    file = workspace.review_key_file
    if _ensure_key("DPTUNE_REVIEW_KEY", file, secret=secret) != secret:
        raise ConfigError(
            f"{file.name} must be the key that the sample was drawn with, but another "
            "command made one meanwhile. Export again."
        )


def read_redaction_key(name: str) -> bytes:
    """Read the key that encrypts values of a redaction, and turns them back.

    Args:
        name: of the variable that holds it as hexadecimal digits, such as
            `DPTUNE_REDACTION_KEY`; with `_FILE` behind it, of the one that names a
            file of them, which only its owner may read.

    Raises:
        ConfigError: neither is set, others may read the file, or it holds no key.
    """
    file = os.environ.get(f"{name}_FILE")
    key = _read_key(name, Path(file or os.devnull))
    if key is None or len(key) < 16:
        raise ConfigError(
            f"{name} or {name}_FILE must give a key of at least 16 bytes as "
            "hexadecimal digits, got none. Make one with `openssl rand -hex 32`, and "
            "keep it where those who may decrypt can read it."
        )
    return key


def read_signing_key() -> bytes | None:
    """Read the key that signs gate decisions, as PEM; None where none is configured.

    It comes from `DPTUNE_SIGNING_KEY`, such as a mounted secret, or from the file that
    `DPTUNE_SIGNING_KEY_FILE` names, which only its owner may read.

    Raises:
        ConfigError: the file is not there, or others may read it.
    """
    given = os.environ.get("DPTUNE_SIGNING_KEY")
    if given:
        return given.encode()
    name = os.environ.get("DPTUNE_SIGNING_KEY_FILE")
    if not name:
        return None
    file = Path(name)
    if not file.is_file():
        raise ConfigError(
            f"DPTUNE_SIGNING_KEY_FILE must name a file, got {file.name}, which is not "
            "there. Mount the key, or unset it to leave decisions unsigned."
        )
    _refuse_readable_by_others(file)
    return file.read_bytes()


def llm_access() -> "LlmAccess":
    """Collect the keys of language models (`DPTUNE_LLM_KEY...`), and where answers go.

    Answers of the detector's model quote text: they stay in the project folder, in a
    file for its owner alone.
    """
    from dptune.detection.endpoint import (  # noqa: PLC0415 - see above
        KEY_VARIABLE,
        LlmAccess,
    )

    keys = {n: key for n, key in os.environ.items() if n.startswith(KEY_VARIABLE)}
    return LlmAccess(keys=keys, cache_file=current_workspace().cache / "llm_answers.db")


def mlflow_pages() -> str | None:
    """Where a browser finds MLflow, if not where pods do (`DPTUNE_MLFLOW_PAGES`)."""
    return os.environ.get("DPTUNE_MLFLOW_PAGES") or None


def _read_key(variable: str, file: Path) -> bytes | None:
    """Read a secret from the environment or a file that only its owner may read."""
    given = os.environ.get(variable)
    if given:
        return _key(given, variable)
    if not file.is_file():
        return None
    _refuse_readable_by_others(file)
    return _key(file.read_text(encoding="ascii", errors="replace"), file.name)


def _refuse_readable_by_others(file: Path) -> None:
    """Refuse a secret that is none."""
    mode = file.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(
            f"{file.name} must be readable by its owner only, got mode {mode:o}. Run "
            "`chmod 600` on it; a key of the data tells who is in them, and a signing "
            "key passes any model."
        )


def _ensure_key(variable: str, file: Path, *, secret: bytes | None = None) -> bytes:
    """Read a secret, making its file where there is none."""
    key = _read_key(variable, file)
    if key is not None:
        return key
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as sink:
            sink.write((secret or secrets.token_bytes(32)).hex())
            sink.flush()
            os.fsync(sink.fileno())
        file.hardlink_to(half)  # another process may have been first: its key stays
    except FileExistsError:
        pass
    finally:
        half.unlink()
    return _ensure_key(variable, file)


def _key(text: str, name: str) -> bytes:
    """Read hexadecimal digits."""
    try:
        return bytes.fromhex(text.strip())
    except ValueError:
        raise ConfigError(
            f"{name} must hold hexadecimal digits, got something else, which is not "
            "shown. Restore the key that belongs to this project."
        ) from None
