"""The explorer's server without a browser: who may ask, for what, how much, and what it answers."""

import json
import socket
import threading
import time

import numpy as np
import pytest
import torch
from explorer_server import asked, serving, tiny_text_run

import contmax
from contmax_lab.attention import Attended
from contmax_lab.contract import Look
from contmax_lab.explorer import _answers, _app, export
from contmax_lab.explorer._lanes import Examination, _positions, ellipse, interval
from contmax_lab.explorer._models import Models
from contmax_lab.explorer._pages import ROOMS

MESS = "The trailer promised a thriller. What we got is a dull, badly written mess."
READER, DIGITS = "packaged:documents", "packaged:digits"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("explorer")
    tiny_text_run(made)
    (made / "secret.txt").write_text("nobody may read this")
    outside = made / "outside" / "run"
    outside.mkdir(parents=True)
    for name in ("config.yaml", "results.json", "model.safetensors"):
        outside.joinpath(name).write_bytes((made / "runs" / "inner" / "stars" / name).read_bytes())
    (made / "runs" / "led-out").symlink_to(outside)
    return made


@pytest.fixture(scope="module")
def port(folder):
    with serving(folder / "runs") as number:
        yield number


# -- the calls, as the page makes them ---------------------------------------------------------------------------------


def test_a_text_is_read_and_looked_at_elsewhere(port):
    status, _, seen = asked(port, "POST", "/api/text", {"model": READER, "text": MESS})
    assert status == 200
    assert seen["classes"] == ["negative", "positive"]
    assert [lane["name"] for lane in seen["lanes"]] == [
        "the model itself", "discrete", "continuous softmax", "continuous sparsemax",
    ]  # fmt: skip
    assert seen["lanes"][0]["answer"][0] > 0.9
    assert all(sum(lane["answer"]) == pytest.approx(1, abs=1e-5) for lane in seen["lanes"])
    whole, last = (
        asked(port, "POST", "/api/interval", {"look": seen["look"], "low": low, "high": 1.0})[2] for low in (0.0, 0.6)
    )
    assert whole != last


def test_a_digit_and_an_image_of_ones_own_are_looked_at(port):
    from PIL import Image

    _, _, examples = asked(port, "GET", f"/api/examples?model={DIGITS}")
    assert len(examples) == 18
    _, _, seen = asked(port, "POST", "/api/example", {"model": DIGITS, "number": 3})
    assert max(seen["lanes"][0]["answer"]) > 0.5
    # The model is a continuous sparsemax: in its place, it says the same.
    assert seen["lanes"][3]["own"]
    assert seen["lanes"][3]["answer"] == pytest.approx(seen["lanes"][0]["answer"], abs=1e-4)
    question = {"look": seen["look"], "centre": [0.2, 0.8], "axes": [0.2, 0.1], "angle": 0.3}
    assert asked(port, "POST", "/api/ellipse", question)[2] != seen["lanes"][0]["answer"]
    import io

    file = io.BytesIO()
    Image.new("RGB", (50, 40), "white").save(file, "PNG")
    status, _, seen = asked(port, "POST", f"/api/image?model={DIGITS}", file.getvalue(), content_type="image/png")
    assert (status, seen["image"]["width"], len(seen["classes"])) == (200, 32, 10)


def test_runs_below_the_folder_are_listed_and_asked(port):
    models = {model["name"]: model["kind"] for model in asked(port, "GET", "/api/models")[2]}
    assert models == {DIGITS: "image", READER: "text", "inner/stars": "text"}
    _, _, seen = asked(port, "POST", "/api/text", {"model": "inner/stars", "text": "a superb film, wonderful"})
    assert seen["classes"] == ["1", "3", "5"]
    assert seen["words"] == ["a", "superb", "film", ",", "wonderful"]


# -- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:1"},
        {"host": "127.0.0.1:{port}.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:{port}"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/models", "/static/style.css"])
def test_others_are_refused(port, headers, path):
    given = {name: value.replace("{port}", str(port)) for name, value in headers.items()}
    status, answered, said = asked(port, "GET", path, **given)
    assert status == 403
    assert "error" in said
    assert "script-src 'self'" in answered["content-security-policy"]


def test_the_page_itself_and_a_link_to_it_are_welcome(port):
    for host in ("127.0.0.1", "localhost"):
        given = {"host": f"{host}:{port}", "origin": f"http://{host}:{port}", "sec_fetch_site": "same-origin"}
        assert asked(port, "GET", "/", **given)[0] == 200
    assert asked(port, "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0] == 200


def test_only_this_machine_is_listened_to(monkeypatch, tmp_path, contmax):
    bound = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: bound.append(sockets[0].getsockname()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
        code, _, (complaint,) = contmax("explore", "--no-browser", "--port", number)
        assert code == 1
        assert f"port {number} cannot be used" in complaint
    assert contmax("explore", "--no-browser", "--port", number, "--runs", tmp_path / "none")[0] == 0
    assert bound == [("127.0.0.1", number)]
    assert contmax("explore", "--port", 70000)[0] == 2


def test_every_answer_has_a_strict_policy_and_is_not_kept(port):
    for room in ROOMS:
        status, headers, page = asked(port, "GET", room.address)
        assert status == 200
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert "<script>" not in page
        assert "style=" not in page
    assert asked(port, "GET", "/docs")[0] == asked(port, "GET", "/openapi.json")[0] == 404


# -- for what ----------------------------------------------------------------------------------------------------------

ELSEWHERE = [
    "../outside/run", "/etc", "inner", "inner/../../outside/run", "led-out", "..", ".", "", "inner/stars/../stars",
    "packaged:translation", "packaged:../x", "%2e%2e", "inner\\stars", "inner/stars\x00",
]  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_name_leads_out_of_the_runs_folder(port, folder, name):
    status, _, said = asked(port, "POST", "/api/text", {"model": name, "text": "good"})
    assert status == 404
    assert "choose one of the list" in said["error"]
    with pytest.raises(KeyError):
        Models(folder / "runs").open(name)


@pytest.mark.parametrize("path", ["/static/../_app.py", "/static/..%2f_app.py", "/static/%2e%2e/%2e%2e/__init__.py",
                                  "/static//etc/passwd", "/secret.txt", "/static/densities.html"])  # fmt: skip
def test_no_other_file_is_served(port, path):
    assert asked(port, "GET", path)[0] == 404


def test_nothing_is_unpickled(port, folder):
    broken = folder / "runs" / "pickled"
    broken.mkdir()
    for name in ("config.yaml", "results.json"):
        broken.joinpath(name).write_bytes((folder / "runs" / "inner" / "stars" / name).read_bytes())
    torch.save({"embedding.weight": torch.zeros(1)}, broken / "model.safetensors")
    status, _, said = asked(port, "POST", "/api/text", {"model": "pickled", "text": "good"})
    assert status == 422
    assert "damaged or not a checkpoint" in said["error"]


def test_a_run_that_is_gone_is_said_to_be_gone(port, folder, tmp_path):
    gone = folder / "runs" / "gone"
    gone.mkdir()
    for name in ("config.yaml", "results.json"):
        gone.joinpath(name).write_bytes((folder / "runs" / "inner" / "stars" / name).read_bytes())
    assert "gone" in {model["name"] for model in asked(port, "GET", "/api/models")[2]}
    gone.rename(tmp_path / "gone")
    status, _, said = asked(port, "POST", "/api/text", {"model": "gone", "text": "good"})
    assert (status, said["error"]) == (404, "there is no model 'gone'; choose one of the list")


# -- how much ----------------------------------------------------------------------------------------------------------


def test_ten_thousand_words_are_a_small_answer(port):
    words = ["wonderful", "film", "dull", ",", "unbelievable"] * 2000
    status, headers, seen = asked(port, "POST", "/api/text", {"model": READER, "text": " ".join(words)})
    assert (status, len(seen["words"])) == (200, 10_000)
    assert int(headers["content-length"]) < 500_000


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "said"),
    [
        ("/api/text", {"model": READER, "text": "good " * 50_000}, {}, 413, "250,000 characters; pass at most 200,000"),
        ("/api/text", {"model": READER, "text": "a!" * 40_000}, {}, 422, "80,000 words and signs; pass at most 30,000"),
        ("/api/text", {"model": READER, "text": "  "}, {}, 422, "no words"),
        ("/api/text", {"model": READER, "text": "Кино"}, {}, 422, "none of this text"),
        ("/api/text", {"model": DIGITS, "text": "good"}, {}, 422, "does not look at a text"),
        ("/api/text", {"model": "x" * 500, "text": "good"}, {}, 422, "model"),
        ("/api/text", {"text": "good"}, {}, 422, "model: Field required"),
        ("/api/text", "not JSON", {"content_type": "application/json"}, 422, "JSON"),
        ("/api/example", {"model": DIGITS, "number": 9999}, {}, 422, "no example 10000"),
        ("/api/interval", {"look": "no", "low": 0.1, "high": 0.5}, {}, 410, "forgotten"),
        ("/api/interval", {"look": "no", "low": 0.5, "high": 0.5}, {}, 422, "empty"),
        ("/api/interval", {"look": "no", "low": -1, "high": 0.5}, {}, 422, "low"),
        ("/api/interval", '{"look": "no", "low": NaN, "high": 0.5}', {"content_type": "application/json"}, 422, "low"),
        ("/api/ellipse", {"look": "no", "centre": [0.5, 0.5], "axes": [0, 0.1], "angle": 0}, {}, 422, "axes"),
        (f"/api/image?model={DIGITS}", b"GIF89a", {"content_type": "text/html"}, 415, "is no image"),
        (f"/api/image?model={DIGITS}", b"\x89PNG but not", {"content_type": "image/png"}, 422, "not an image"),
        (f"/api/image?model={DIGITS}", b"%!PS-Adobe EPSF", {"content_type": "image/png"}, 422, "not an image"),
        (f"/api/image?model={DIGITS}", bytes(8_000_001), {"content_type": "image/png"}, 413, "more than 8 MB"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(port, path, content, headers, status, said):
    found, _, answer = asked(port, "POST", path, content, **headers)
    assert found == status
    assert said in answer["error"]
    assert "\n" not in answer["error"]


def test_a_flood_without_a_length_is_cut_off(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as flood:
        head = f"POST /api/text HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ntransfer-encoding: chunked\r\n\r\n"
        flood.sendall(head.encode())
        chunk = b"100000\r\n" + bytes(0x100000) + b"\r\n"
        try:
            for _ in range(12):
                flood.sendall(chunk)
        except OSError:
            pass
        assert b"413" in flood.recv(400)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(port):
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(file, "PNG")
    status, _, said = asked(port, "POST", f"/api/image?model={DIGITS}", file.getvalue(), content_type="image/png")
    assert status == 422
    assert "pixels; make it smaller" in said["error"]


def test_a_question_that_takes_too_long_is_given_up_and_a_queue_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(_app, "TIME_LIMIT", 0.2)
    leave = threading.Event()
    monkeypatch.setattr(_answers.Answers, "models", lambda self: leave.wait(20))
    with serving(tmp_path) as port:
        started = time.monotonic()
        found = [asked(port, "GET", "/api/models")[::2] for _ in range(10)]
        leave.set()
        assert time.monotonic() - started < 10
    assert {status for status, _ in found} == {503}
    assert "longer than" in found[0][1]["error"]
    assert "too many questions" in found[-1][1]["error"]


def test_an_error_of_ours_tells_the_page_nothing_but_where_to_look(tmp_path, monkeypatch):
    def broken(self):
        raise RuntimeError("/home/somebody/secret")

    monkeypatch.setattr(_answers.Answers, "models", broken)
    with serving(tmp_path) as port:
        status, _, said = asked(port, "GET", "/api/models")
    assert status == 500
    assert "secret" not in json.dumps(said)


# -- what the answers mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [READER, DIGITS, "inner/stars"])
def test_other_attentions_have_the_moments_of_the_models_own(folder, name):
    model = Models(folder / "runs").open(name)
    given = MESS if model.task.looks_at == "text" else model.task.batch(model.examples, [5])["pixels"][0]
    itself, discrete, gaussian, parabola = Examination(model.look(given)).lanes
    assert (gaussian.densities[0].alpha, parabola.densities[0].alpha) == (1.0, 2.0)
    assert float(discrete.weights.sum()) == pytest.approx(1, abs=1e-5)
    (own,) = itself.densities
    for other in (gaussian.densities[0], parabola.densities[0]):
        torch.testing.assert_close(other.mean, own.mean)
        torch.testing.assert_close(other.variance, own.variance)


def test_an_attention_takes_the_place_of_every_head_and_of_both_parts():
    values = torch.randn(6, 4)
    weights = torch.softmax(torch.randn(1, 6), -1)
    head = Attended(2 * weights @ values, weights, interval(0.2, 0.9).expand(torch.Size([1])))
    look = Look(values, [head, head], lambda context: context, (), words=list("abcdef"))
    discrete = Examination(look).lanes[1]
    np.testing.assert_allclose(discrete.answer, (2 * weights[0] @ values).repeat(2).tolist(), rtol=1e-5)


@pytest.mark.parametrize("grid", [None, (2, 3)])
def test_heads_that_look_at_different_places_are_compared_with_one_that_spans_them(grid):
    values = torch.randn(6, 4)
    weights = torch.eye(6)[[0, 5]].unsqueeze(1) * 0.8 + 0.2 / 6
    heads = [Attended(own @ values, own) for own in weights]
    look = Look(values, heads, lambda context: context, (), words=list("abcdef") if grid is None else (), grid=grid)
    _, _, gaussian, parabola = Examination(look).lanes
    # The mean and the covariance of a mixture of both heads.
    mean, spread = contmax.maps.moments(weights.mean(0)[0], _positions(look), grid=grid)
    for lane in (gaussian, parabola):
        (density,) = lane.densities
        torch.testing.assert_close(density.mean, mean)
        torch.testing.assert_close(density.variance if grid is None else density.covariance_matrix, spread)


def test_an_ellipse_is_where_it_is_said_to_be():
    p = ellipse((0.3, 0.6), (0.2, 0.1), 0.0)
    inside, outside = torch.tensor([[0.49, 0.6], [0.3, 0.69]]), torch.tensor([[0.51, 0.6], [0.3, 0.71]])
    assert bool((p.density(inside) > 0).all())
    assert p.density(outside).tolist() == [0.0, 0.0]
    slanted = ellipse((0.5, 0.5), (0.3, 0.05), torch.pi / 4)
    assert float(slanted.density(torch.tensor([0.7, 0.7]))) > 0 == float(slanted.density(torch.tensor([0.7, 0.3])))
    turned = ellipse((0.5, 0.5), (0.3, 0.05), torch.pi / 2)
    assert float(turned.density(torch.tensor([0.5, 0.79]))) > 0 == float(turned.density(torch.tensor([0.79, 0.5])))


def test_the_rooms_that_need_no_server_are_written_as_files(contmax, tmp_path):
    code, printed, _ = contmax("explore", "--export", tmp_path / "pages")
    assert code == 0
    assert printed.split() == [str(tmp_path / "pages" / name) for name in ("densities.html", "scores.html")]
    assert [path.stat().st_size < 60_000 for path in export(tmp_path / "again")] == [True, True]
    page = (tmp_path / "pages" / "densities.html").read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert "import {" not in page
