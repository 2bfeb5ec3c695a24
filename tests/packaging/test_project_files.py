"""Files around the code agree with it: version, changelog, citation, extras, workflows, model cards."""

import json
import math
import re
import tomllib

import pytest
import yaml
from built import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
MODELS = sorted((ROOT / "src").rglob("model.safetensors"))
PYTHON = "Programming Language :: Python ::"
HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (Unreleased|\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def test_the_newest_heading_of_the_changelog_is_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = HEADING.findall(text)
    assert headings[0][0] == PROJECT["version"]
    assert len(headings) == text.count("\n## "), "a heading is not of the form «## [1.2.3] - 2026-01-31»"
    assert all(date != "Unreleased" for _, date in headings[1:])
    versions = [tuple(map(int, version.split("."))) for version, _ in headings]
    assert versions == sorted(set(versions), reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds
    assert all(f"\n[{version}]: https://" in text for version, _ in headings)


def test_the_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    (paper,) = citation["references"]
    assert paper["title"] == "Sparse and Continuous Attention Mechanisms"
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Martins", "Farinhas", "Treviso", "Niculae", "Aguiar", "Figueiredo"]
    assert paper["url"] == PROJECT["urls"]["Paper"]


def test_all_is_every_extra_for_users():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.fullmatch(r"contmax\[([\w,]+)\]", everything)[1].split(","))
    # Users of PyTorch need no JAX, which is 340 MB.
    assert named == set(extras) - {"all", "test", "dev", "docs", "jax"}


def test_the_readme_names_every_extra():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("Install it from a clone") : readme.index("\n## ")]
    assert [name for name in PROJECT["optional-dependencies"] if not re.search(rf"\b{name}\b", section)] == []


def steps(workflow):
    return [step for job in WORKFLOWS[workflow]["jobs"].values() for step in job.get("steps", [])]


def test_workflows_run_what_ci_runs():
    assert set(WORKFLOWS) == {"tests", "docs", "publish", "plain", "versions"}
    assert steps("plain")[-1]["run"] == "make test-plain"
    assert [step["run"] for step in steps("tests") if "run" in step][-1] == ".ci/run"
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert {"lint", "docs", "test"} <= {
        word for line in commands.splitlines() if line.startswith("make ") for word in line.split()
    }
    assert "make docs" in [step.get("run") for step in steps("docs")]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_publishing_needs_a_tag_the_tests_and_no_password():
    workflow = WORKFLOWS["publish"]
    # YAML takes the word on for true.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    jobs = workflow["jobs"]
    assert jobs["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "workflow_call" in WORKFLOWS["tests"][True]
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("tests", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets" not in (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    check = next(step["run"] for step in jobs["build"]["steps"] if "CHANGELOG.md" in step.get("run", ""))
    assert r"^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" in check


def card_of(weights):
    return (weights.parent / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_models_travel_with_cards():
    assert len(MODELS) >= 2
    assert {path.parent for path in MODELS} == {path.parent for path in (ROOT / "src").rglob("MODEL_CARD.md")}
    assert not [path for suffix in ("pt", "pth", "pkl", "bin", "ckpt") for path in (ROOT / "src").rglob(f"*.{suffix}")]


@pytest.mark.parametrize("weights", MODELS, ids=lambda path: path.parts[-3])
def test_a_card_says_data_command_accuracy_limits_and_licence(weights):
    card, config = card_of(weights), json.loads((weights.parent / "config.json").read_text(encoding="utf-8"))
    assert set(re.findall(r"^## (.*)$", card, re.MULTILINE)) == {"Data", "Training", "Accuracy", "Limits"}
    assert {"Licence", "Format"} <= set(re.findall(r"\*\*(\w+)\.\*\*", card))
    assert f"contmax train {config['task']}" in card
    assert "contmax export" in card
    for part, name in (("valid", "validation"), ("test", "test")):
        figures, count = config["figures"][part], config["trained"]["examples"][part]
        row = f"| {name} | {count:,} | {100 * figures['accuracy']:.1f} % | {100 * figures['attended']:.1f} % |"
        assert row in card
    assert f"{config['trained']['examples']['train']:,}" in card
    assert f"seed {config['trained']['seed']}" in card


@pytest.mark.parametrize("weights", MODELS, ids=lambda path: path.parts[-3])
def test_a_card_says_what_is_in_the_file(weights):
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    learned = [math.prod(entry["shape"]) for entry in tensors if entry["dtype"] == "F16"]
    assert f"{sum(learned):,} parameters" in card_of(weights)
    assert "float16" in card_of(weights)


def test_points_of_versions_start_at_the_lower_bounds():
    stated = tomllib.loads((ROOT / "tests" / "versions" / "points.toml").read_text(encoding="utf-8"))
    points = stated["points"].values()
    needed = dict(line.split(">=") for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cpu"]])
    oldest = dict(line.split("==") for line in stated["points"]["oldest"]["packages"])
    assert all(f"{oldest[name]}.".startswith(f"{bound}.") for name, bound in needed.items())
    pythons = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(f"{PYTHON} 3.")}
    assert {point["python"] for point in points} >= pythons
    assert f">={min(pythons)}" == PROJECT["requires-python"]
    assert len(points) >= 5
    files = [*stated["core"], *stated["elsewhere"]["core"]]
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_badges_are_true():
    badges = (ROOT / "README.md").read_text(encoding="utf-8").split("\n**", 1)[0]
    pythons = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(f"{PYTHON} 3.")]
    torch = PROJECT["dependencies"][0].removeprefix("torch>=")
    assert f"python-{pythons[0]}_to_{pythons[-1]}-blue" in badges
    assert f"torch-%E2%89%A5_{torch}-blue" in badges
    assert f"licence-{PROJECT['license']}-green" in badges
    assert badges.count("https://img.shields.io") == 3


def test_archive_and_website_are_described():
    archive = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert [archive["title"], archive["license"]] == [citation["title"], citation["license"]]
    assert archive["description"] == citation["abstract"]
    assert [creator["name"] for creator in archive["creators"]] == [author["name"] for author in citation["authors"]]
    assert "version" not in archive  # Zenodo takes it from the tag
    website = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text(encoding="utf-8"))
    assert "make docs" in website["build"]["commands"][0]
