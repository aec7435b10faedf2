"""Files in the console: chosen, dropped and pasted, sent in pieces, and shown in the conversation."""

import hashlib
import os
import struct
import zlib
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped] # it has no types
from playwright.sync_api import Locator, Page, expect

from tests.transport.console.stage import STANDARD, Gateway, Watched, act, show
from warren.conversation.attachments import File

GIVE = """(target, [kind, name, type, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name, { type }));
    const about = { bubbles: true, cancelable: true };
    target.dispatchEvent(kind === "paste" ? new ClipboardEvent("paste", { ...about, clipboardData: data })
        : new DragEvent(kind, { ...about, dataTransfer: data }));
}"""
"""Pastes or drops a file."""


def png(side: int) -> bytes:
    """Return a square of noise: three bytes a pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + os.urandom(3 * side) for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b"")


def chosen(page: Page) -> Locator:
    """Return the files that are chosen for the next prompt."""
    return page.get_by_role("list", name="Files to send").get_by_role("listitem")


def choose(page: Page, *paths: Path) -> None:
    """Choose files with the keyboard and the dialog of the browser."""
    with page.expect_file_chooser() as opened:
        page.get_by_role("button", name="Attach…").press("Enter")
    opened.value.set_files(paths)


def test_the_context_shows_the_pictures_of_its_messages(served: Gateway, watched: Watched) -> None:
    """A picture is loaded there as in the conversation, and can be saved."""
    session_id = served.create("What is this?", attachments=[File(png(8), name="dot.png")])
    show(watched.page, served, "session", session_id, "context")
    expect(watched.page.locator(".context img")).to_have_js_property("naturalWidth", 8)
    with watched.page.expect_download() as saved:
        watched.page.locator(".context").get_by_role("button", name="Save dot.png").click()
    assert saved.value.suggested_filename == "dot.png"


def test_files_go_with_a_prompt(served: Gateway, watched: Watched, tmp_path: Path) -> None:
    """A photo above the bound of a message, and a dropped file; the conversation shows them, also afterwards."""
    photo = tmp_path / "photo.png"
    photo.write_bytes(png(720))
    assert photo.stat().st_size > 1_500_000
    page, session_id = watched.page, served.create(None, title="Pictures")
    show(page, served, "session", session_id)
    words, composer = page.get_by_label("Message", exact=True), page.locator(".composer")
    choose(page, photo)
    words.evaluate(GIVE, ["paste", "notes.md", "text/markdown", "# two words"])
    composer.evaluate(GIVE, ["dragover", "x", "text/plain", ""])
    composer.evaluate(GIVE, ["drop", "page.html", "text/html", "<script>alert(1)</script>"])
    composer.evaluate(GIVE, ["drop", "film.mp4", "video/mp4", "moving"])
    expect(page.get_by_role("alert")).to_contain_text("The file film.mp4 is video/mp4: images (PNG")
    expect(chosen(page)).to_have_text(["photo.png 1.5 MBRemove", "notes.md 11 BRemove", "page.html 25 BRemove"])
    page.get_by_role("button", name="Remove notes.md").press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(chosen(page)).to_have_count(2)
    assert Axe().run(page, options={"runOnly": STANDARD}).response["violations"] == []
    words.fill("What is this?")
    words.press("Enter")
    expect(page.locator(".said.model")).to_contain_text(f"[image photo.png: {photo.stat().st_size} bytes]")
    expect(chosen(page)).to_have_count(0)
    for again in (False, True):
        if again:
            page.reload()
        picture = page.get_by_role("img", name="photo.png")
        expect(picture).to_be_visible()
        assert picture.evaluate("(each) => each.decode().then(() => each.naturalWidth)") == 720
        assert picture.evaluate("(each) => each.src").startswith("blob:")
    with page.expect_download() as saved:
        act(page, "Export as Markdown")
    hashed, size = hashlib.sha256(photo.read_bytes()).hexdigest(), photo.stat().st_size
    line = f"- File `photo.png`, image/png, {size} bytes, SHA-256 `{hashed}`\n- File `page.html`, text/html, 25 bytes"
    assert f"What is this?\n\n{line}" in saved.value.path().read_text(encoding="utf-8")
    with page.expect_download() as saved:
        act(page, "Export as JSON")
    assert hashed in saved.value.path().read_text(encoding="utf-8")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save page.html").click()
    assert (saved.value.suggested_filename, saved.value.path().read_bytes()) == (
        "page.html",
        b"<script>alert(1)</script>",
    )
    assert Axe().run(page, options={"runOnly": STANDARD}).response["violations"] == []
    if folder := os.environ.get("WARREN_PICTURES"):
        page.screenshot(path=f"{folder}/files.png")


def test_a_file_that_is_refused(served: Gateway, watched: Watched) -> None:
    """The refusal names the file, and nothing that was written is lost."""
    page, session_id = watched.page, served.create(None)
    show(page, served, "session", session_id)
    words = page.get_by_label("Message", exact=True)
    words.evaluate(GIVE, ["paste", "a.pdf", "application/pdf", "no such"])
    words.fill("Read this")
    words.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The file a.pdf: is application/pdf, but the data is not")
    expect(words).to_have_value("Read this")
    expect(chosen(page)).to_have_text(["a.pdf 7 BRemove"])
    page.get_by_label("How").select_option("context")
    words.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("A text for the context has no files")


def test_a_file_of_a_prompt_that_another_client_sent(served: Gateway, watched: Watched) -> None:
    """A large picture waits for a click, and a fork shows the files of its original."""
    page = watched.page
    session_id = served.create("look", attachments=[File(png(900), name="large.png")])
    fork = served.ask(lambda service: service.fork(session_id)).state.session_id
    show(page, served, "session", fork)
    page.get_by_role("button", name="Show large.png").click()
    expect(page.get_by_role("img", name="large.png")).to_be_visible()


def test_a_file_that_the_model_does_not_take(served: Gateway, watched: Watched) -> None:
    """It is refused as it is chosen, the others stay; the first prompt waits in the composer, and nothing is sent."""
    page, sent = watched.page, list[str | bytes]()
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(frame)))  # noqa: PLW0108
    show(page, served)
    page.get_by_role("button", name="New session").first.click()
    prompt, dialog = page.get_by_label("First prompt"), page.get_by_role("dialog")
    prompt.evaluate(GIVE, ["paste", "a.png", "image/png", "x"])
    dialog.locator("form").evaluate(GIVE, ["drop", "b.md", "text/markdown", "# b"])
    expect(chosen(page)).to_have_text(["a.png 1 BRemove", "b.md 3 BRemove"])
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Files go with a prompt")
    prompt.fill("Look at this")
    page.get_by_label("Model", exact=True).last.fill("local:blind")
    dialog.get_by_role("button", name="Create").click()
    refusal = "The file a.png: the model of this session takes no image, only text."
    words = page.get_by_label("Message", exact=True)
    expect(page.get_by_role("alert")).to_contain_text(refusal)
    expect(words).to_have_value("Look at this")
    page.get_by_role("button", name="Remove a.png").click()
    page.locator(".composer").evaluate(GIVE, ["drop", "c.pdf", "application/pdf", "x"])
    expect(page.get_by_role("alert")).to_contain_text("The file c.pdf: the model of this session takes no pdf")
    expect(chosen(page)).to_have_text(["b.md 3 BRemove"])
    assert any("session/context" in str(frame) for frame in sent)
    assert not any("file/put" in str(frame) or "turn/start" in str(frame) for frame in sent)


def test_files_of_the_first_prompt(served: Gateway, watched: Watched, tmp_path: Path) -> None:
    """The dialog takes them as the composer does, and the first turn has them."""
    (tmp_path / "d.png").write_bytes(png(8))
    page = watched.page
    show(page, served)
    page.get_by_role("button", name="New session").first.click()
    choose(page, tmp_path / "d.png")
    page.get_by_label("First prompt").fill("What is this?")
    assert Axe().run(page, options={"runOnly": STANDARD}).response["violations"] == []
    page.get_by_role("button", name="Create").click()
    expect(page.locator(".said.model")).to_contain_text("[image d.png: ")
    expect(page.get_by_role("img", name="d.png")).to_be_visible()
