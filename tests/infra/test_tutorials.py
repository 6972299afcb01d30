"""The notebooks run as they are, in a kernel of this environment; pages show them."""

import copy

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from infra.workspace import REPOSITORY

TUTORIALS = REPOSITORY / "docs" / "tutorials"
NOTEBOOKS = ["detection", "private_loop", "script_and_budget"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of Jupyter, about itself


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run a notebook in an empty folder with this copy of the package."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")

    def executed(notebook):
        done = copy.deepcopy(notebook)
        place = {"metadata": {"path": str(tmp_path)}}
        client = NotebookClient(
            done, timeout=300, kernel_name="python3", resources=place
        )
        client.execute()
        return done

    return executed


def read(name):
    return nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)


def printing(notebook):
    """Numbers of the cells that print or return something."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        if any(output.get("name") != "stderr" for output in cell.get("outputs", ()))
    ]


def test_all_notebooks_are_run():
    assert sorted(path.stem for path in TUTORIALS.glob("*.ipynb")) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_and_prints_where_its_page_shows_output(name, execute):
    stored = read(name)
    nbformat.validate(stored)
    assert printing(stored) == printing(execute(stored))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_outputs_are_text_without_warnings(name):
    outputs = [o for cell in read(name).cells for o in cell.get("outputs", ())]
    assert outputs
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert {output.output_type for output in outputs} <= {"stream", "execute_result"}


def test_notebook_that_fails_is_caught(execute):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(broken)
