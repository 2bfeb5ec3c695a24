"""Archives that are cut, damaged, empty, locked or in the way leave nothing behind, and say so in one line."""

import io
import random
import tarfile
import zipfile

import pytest

NOISE = random.Random(0).randbytes(20000)


def tar(path, *names, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(NOISE)
            archive.addfile(member, io.BytesIO(NOISE))
    return path


def damaged(path, start=15000, content=bytes(100)):
    before = path.read_bytes()
    path.write_bytes(before[:start] + content + before[start + len(content) :])


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def locked_zip(path):
    """A zip archive whose only member claims to be encrypted."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", NOISE)
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


def write_hostile(folder, kind):
    name, _, what = kind.partition(" ")
    path = folder / name
    if what == "locked":
        locked_zip(path)
    elif name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", NOISE)
            archive.writestr("b.txt", NOISE)
        damaged(path, start=30000)
    else:
        names = () if what == "empty" else ("a", "b")
        tar(path, *names, mode=f"w:{name.rpartition('.')[2]}" if name.count(".") == 2 else "w")
    if what == "cut":
        cut(path, 0.7)
    elif what == "damaged" and not name.endswith(".zip"):
        damaged(path)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "a.tar cut",
        "a.tar.gz cut",
        "a.tar.xz cut",
        "a.tar.gz damaged",
        "a.tar.xz damaged",
        "a.tar.bz2 damaged",
        "a.zip damaged",
        "a.zip locked",
        "a.tar empty",
    ],
)
def test_all_of_an_archive_or_nothing(contmax, tmp_path, kind):
    path, into = write_hostile(tmp_path, kind), tmp_path / "into"
    code, printed, errors = contmax("data", "prepare", path, "--into", into)
    assert (code, printed, len(errors)) == (1, "", 1)
    assert str(path) in errors[0]
    assert list(into.iterdir()) == []


def test_names_in_an_archive_never_lead_outside(contmax, tmp_path):
    code, printed, _ = contmax("data", "prepare", tar(tmp_path / "a.tar", "/away/a"), "--into", tmp_path / "into")
    assert code == 0
    assert printed.split() == [str(tmp_path / "into" / "away" / "a")]
    assert (tmp_path / "into" / "away" / "a").read_bytes() == NOISE


def test_an_archive_replaces_what_it_unpacked_before(contmax, tmp_path):
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "a").write_text("old")
    (tmp_path / "into" / "mine").write_text("kept")
    code, _, _ = contmax("data", "prepare", tar(tmp_path / "a.tar", "a"), "--into", tmp_path / "into")
    assert code == 0
    assert (tmp_path / "into" / "a").read_bytes() == NOISE
    assert sorted(path.name for path in (tmp_path / "into").iterdir()) == ["a", "mine"]


def test_nothing_is_moved_if_something_is_in_the_way(contmax, tmp_path):
    archive = tmp_path / "two.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("a.txt", "new")
        packed.writestr("b.txt", "new")
    into = tmp_path / "into"
    (into / "b.txt").mkdir(parents=True)
    (into / "a.txt").write_text("old")
    code, _, errors = contmax("data", "prepare", archive, "--into", into)
    assert code == 1
    assert "b.txt is in the way" in errors[-1]
    assert (into / "a.txt").read_text() == "old"


def test_many_files_are_counted(contmax, tmp_path):
    names = [f"reviews/{number}" for number in range(30)]
    code, printed, _ = contmax("data", "prepare", tar(tmp_path / "a.tar", *names), "--into", tmp_path / "into")
    assert code == 0
    assert "30 files" in printed
    assert len(printed.splitlines()) < 15


@pytest.mark.usefixtures("trained_here", "sketched")
def test_a_place_that_cannot_be_written(contmax, config, tmp_path):
    (tmp_path / "file").write_text("")
    run, place = tmp_path / "run", tmp_path / "file" / "into"
    assert contmax("train", config, "--folder", run)[0] == 0
    for arguments in (
        ["data", "prepare", tar(tmp_path / "a.tar", "a"), "--into", place],
        ["data", "prepare", tar(tmp_path / "a.tar", "a"), "--into", tmp_path / "file"],
        ["report", run, "--output", place / "report.html"],
        ["predict", "A film to remember.", "--figure", place / "a.png"],
        ["search", config, "--trials", "1", "--runs", place],
        ["demo", "--seeds", "1", "--training.epochs", "1", "--output", place],
        ["reproduce", "seattle", "--training.epochs", "1", "--runs", place, "--output", place / "a.json"],
    ):
        code, _, errors = contmax(*arguments)
        assert code == 1, arguments
        assert errors[-1].startswith("contmax: cannot "), arguments
        assert "Traceback" not in "".join(errors)
    assert "--resume" not in errors[-1]


def test_what_no_action_takes_is_refused(contmax, tmp_path):
    for arguments in (["list", "junk"], ["list", "--junk"], ["prepare", tar(tmp_path / "a.tar", "a"), "--junk", "1"]):
        code, printed, errors = contmax("data", *arguments)
        assert (code, printed, len(errors)) == (2, "", 1)
        assert "junk" in errors[0]
