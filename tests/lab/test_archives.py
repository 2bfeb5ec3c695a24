"""Archives that are cut, damaged, empty, locked or in the way leave nothing behind, and say so in one line."""

import io
import random
import stat
import tarfile
import zipfile
from pathlib import Path

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


def member(name, kind=tarfile.REGTYPE, link="", content=b""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, len(content)
    return made, io.BytesIO(content)


def chain_of_links(target):
    """Links so long together that `os.path.realpath` gives up, which Python's own filter took for a path inside."""
    name, letters, path = "d" * 247, "abcdefghijklmnop", ""
    for letter in letters:
        yield member(f"{path}{name}", tarfile.DIRTYPE)
        yield member(f"{path}{letter}", tarfile.SYMTYPE, name)
        path = f"{path}{name}/"
    top = "/".join(letters) + "/" + "l" * 254
    yield member(top, tarfile.SYMTYPE, "../" * len(letters))
    yield member("leads", tarfile.SYMTYPE, f"{top}/{target}")
    yield member("leads/planted", content=b"new")


def escapes(outside):
    """Members that would write into a folder outside, or read from it."""
    through = member("leads/planted", content=b"new")
    return {
        "a name that climbs": [member("../../outside/planted", content=b"new")],
        "a name that climbs within": [member("a/../../../outside/planted", content=b"new")],
        "a link to a folder": [member("leads", tarfile.SYMTYPE, str(outside)), through],
        "a link that climbs": [member("leads", tarfile.SYMTYPE, "../../outside"), through],
        "a link to a file": [member("read", tarfile.SYMTYPE, str(outside / "own"))],
        "a link to a file, written to": [
            member("own", tarfile.SYMTYPE, str(outside / "own")),
            member("own", content=b"new"),
        ],
        "a hard link": [member("own", tarfile.LNKTYPE, str(outside / "own")), member("own", content=b"new")],
        "a hard link that climbs": [member("own", tarfile.LNKTYPE, "../../outside/own")],
        "links in links": [
            member("here", tarfile.SYMTYPE, "."),
            member("leads", tarfile.SYMTYPE, "here/../../outside"),
            through,
        ],
        "links before their links": [
            member("leads", tarfile.SYMTYPE, "here/here/../../outside"),
            member("here", tarfile.SYMTYPE, "."),
            through,
        ],
        "a long chain of links": list(chain_of_links("../../outside")),
        "a device": [member("null", tarfile.CHRTYPE)],
        "a pipe": [member("pipe", tarfile.FIFOTYPE)],
    }


@pytest.mark.parametrize("escape", escapes(Path("/outside")))
def test_what_would_lead_outside_is_refused_and_nothing_is_written(contmax, tmp_path, escape):
    outside, into = tmp_path / "outside", tmp_path / "into"
    outside.mkdir()
    (outside / "own").write_text("own")
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        for made, content in [member("before", content=b"new"), *escapes(outside)[escape]]:
            archive.addfile(made, content)
    code, printed, errors = contmax("data", "prepare", tmp_path / "a.tar", "--into", into)
    assert [path.name for path in outside.iterdir()] == ["own"]
    assert (outside / "own").read_text() == "own"
    assert (outside / "own").stat().st_nlink == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "into", "outside"]
    assert (code, printed, len(errors)) == (1, "", 1)
    assert "cannot be unpacked" in errors[0]
    assert list(into.iterdir()) == []


def test_names_in_an_archive_never_lead_outside(contmax, tmp_path):
    """An absolute name is one below the folder; that it names a place that can be written makes no difference."""
    away, into = tmp_path / "away" / "a", tmp_path / "into"
    code, printed, _ = contmax("data", "prepare", tar(tmp_path / "a.tar", str(away)), "--into", into)
    assert not away.parent.exists()
    assert code == 0
    assert printed.split() == [f"{into}{away}"]
    assert Path(f"{into}{away}").read_bytes() == NOISE


def test_links_within_an_archive_stay_links(contmax, tmp_path):
    members = [
        member("v1/a", content=b"new"),
        member("latest", tarfile.SYMTYPE, "v1"),
        member("b", tarfile.LNKTYPE, "v1/a"),
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for made, content in members:
            archive.addfile(made, content)
    code, _, errors = contmax("data", "prepare", tmp_path / "a.tar", "--into", tmp_path / "into")
    assert (code, errors) == (0, [])
    assert (tmp_path / "into" / "latest").readlink() == Path("v1")
    assert (tmp_path / "into" / "latest" / "a").read_text() == (tmp_path / "into" / "b").read_text() == "new"


def test_a_zip_archive_has_neither_links_nor_names_that_lead_outside(contmax, tmp_path):
    outside, into = tmp_path / "outside", tmp_path / "into"
    outside.mkdir()
    link = zipfile.ZipInfo("leads")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, str(outside))
        archive.writestr("../outside/climbed", "new")
        archive.writestr("../../outside/climbed", "new")
        archive.writestr(f"{outside}/absolute", "new")
    code, printed, _ = contmax("data", "prepare", tmp_path / "a.zip", "--into", into)
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "into", "outside"]
    assert code == 0
    assert (into / "leads").read_text() == str(outside)
    assert not any(path.is_symlink() for path in into.rglob("*"))
    assert all(Path(path).resolve().is_relative_to(into) for path in printed.split())


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
