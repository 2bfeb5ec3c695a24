"""What is in the wheel and in the sdist, what is not, and what a user meets who installs the wheel and nothing else."""

import email
import re
import tarfile
import zipfile

import pytest
from built import ROOT, sources

PACKAGED = [
    "contmax/py.typed",
    "contmax_lab/py.typed",
    "contmax_lab/cli/template/task.py.txt",
    "contmax_lab/tasks/documents/recipe.yaml",
    "contmax_lab/tasks/documents/pretrained/MODEL_CARD.md",
    "contmax_lab/tasks/documents/pretrained/config.json",
    "contmax_lab/tasks/documents/pretrained/model.safetensors",
    "contmax_lab/tasks/documents/pretrained/vocab.txt",
]


@pytest.fixture(scope="module")
def wheel(distributions):
    with zipfile.ZipFile(distributions[0]) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert files == sources()
    assert set(PACKAGED) <= files
    about = {name.partition(".dist-info/")[2] for name in wheel.namelist()} - {""}
    assert about == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_wheel_is_small_and_holds_neither_tests_nor_figures_nor_runs(wheel):
    suffixes = {name.rpartition(".")[2] for name in wheel.namelist() if ".dist-info/" not in name}
    assert not suffixes & {"pyc", "nbi", "nbc", "png", "pt", "pkl", "npz"}
    assert not [
        name for name in wheel.namelist() if re.match(r"(tests|runs|results|docs|demo|fuzz)/|.*/test_\w+\.py$", name)
    ]
    assert sum(info.compress_size for info in wheel.infolist()) < 5_000_000
    large = [info.filename for info in wheel.infolist() if info.file_size > 300_000]
    assert all(name.endswith("/pretrained/model.safetensors") for name in large)


def test_the_sdist_holds_what_makes_the_wheel(distributions):
    with tarfile.open(distributions[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.removeprefix("src/") for name in names if name.startswith("src/")} == sources()
    about = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml"}
    # .gitignore is what tells the builder which files are not ours.
    assert {name for name in names if not name.startswith("src/")} - {".gitignore"} == about | {"PKG-INFO"}
    assert distributions[1].stat().st_size < 5_000_000


def test_the_metadata_are_those_of_the_project(metadata):
    always = {line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert {re.match(r"[\w-]+", line)[0] for line in always} == {"torch", "numpy"}
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert {line.partition(",")[0] for line in metadata.get_all("Project-URL")} >= {
        "Documentation",
        "Issues",
        "Changelog",
    }
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_links_of_the_readme_lead_somewhere_on_the_package_index(metadata):
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert len(targets) > 20
    assert not [target for target in targets if not target.startswith(("https://", "#"))]
    ours = re.compile(rf"https://[\w.]+/contmax/contmax/(?:blob/)?v{metadata['Version']}/([^#]*)")
    inside = [match[1] for match in map(ours.match, targets) if match]
    assert len(inside) > 15
    assert not [path for path in inside if not (ROOT / path).exists()]


def test_the_library_needs_torch_and_numpy_and_nothing_else(bare):
    program = """
import contmax, sys, torch
p = contmax.sparsemax(torch.tensor([[1.0, 0.5, -1.0]]))
basis = contmax.basis.GaussianBasis.covering(8)
context, density = contmax.nn.ContinuousAttention(basis, embed_dim=4)(torch.randn(2, 30, 4))
contmax.losses.entmax_loss(torch.randn(3, 5), torch.tensor([0, 1, 2]))
contmax.regularized_prediction(lambda t: -t.abs(), contmax.domains.Interval(-3.0, 3.0), alpha=2.0)
import contmax.viz
print(contmax.__file__, p.tolist(), tuple(context.shape))
absent = ("numba", "triton", "matplotlib", "jaxtyping", "scipy", "yaml", "rich", "accelerate", "safetensors")
from importlib.util import find_spec
assert not [name for name in absent if find_spec(name)], "this environment is not bare"
"""
    done = bare.run("python", "-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout
    assert "[[0.75, 0.25, 0.0]] (2, 4)" in done.stdout


def test_the_command_without_its_extra_says_in_one_line_what_to_install(bare):
    done = bare.run("contmax", "demo")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("contmax: ")
    assert "pip install 'contmax[lab]'" in line
    assert not (bare.bin / "demo").exists()


def test_the_command_says_its_version(bare, metadata):
    done = bare.run("contmax", "--version")
    assert (done.returncode, done.stdout) == (0, f"contmax {metadata['Version']}\n"), done.stderr
