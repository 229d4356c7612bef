"""The page in a real browser, against a real server: all that a person does with it."""

import io
import re

import pytest
from PIL import Image
from serving import Server

AWAY = "net::ERR_"  # what a browser notes of a server that restarts: refused, reset, cut short
PATIENCE = 120_000  # milliseconds: a busy machine fails no test


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with Server(f"sqlite:///{folder}/streams.db", "--threads", 1) as server:
        yield server


@pytest.fixture
def expect(browser):
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect


class Visit:
    """A tab, with all that its console complains of and all that it asks for."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.problems, self.hosts = [], set()
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._asked)

    def _note(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _asked(self, request):
        if not request.url.startswith(("data:", "blob:")):
            self.hosts.add(re.match(r"\w+://([^/]+)", request.url)[1])

    def part(self, name):
        return self.page.get_by_test_id(name)

    def points(self, chart):
        return int(self.part(f"chart-{chart}").get_attribute("data-points"))

    def number(self, what):
        """One of the numbers of the line below the stream's name, such as its version."""
        facts = self.part("stream-facts").inner_text()
        return int(re.search(rf"(?:{what} (\d+)|(\d+) images? {what})", facts).expand(r"\1\2"))

    def agree(self):
        self.part("ask-yes").click()
        self.part("ask").wait_for(state="hidden")


def until(visit, words, **arguments):
    """Wait for something of the page that is no element: an expression in JavaScript."""
    visit.page.wait_for_function(words, **arguments)


def png(colour):
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(buffer, "PNG")
    return {"name": f"{colour}.png", "mimeType": "image/png", "buffer": buffer.getvalue()}


CURVE = """([chart, least]) =>
    document.querySelector(`[data-testid=chart-${chart}]`).dataset.points >= least"""


def create_a_stream(visit, expect):
    """A stream of one's own, by typing and by keyboard."""
    page, part = visit.page, visit.part
    part("classes").fill("bell, camera\nheart, bell")
    expect(part("name")).to_have_value("bell-camera-heart")
    part("name").press("Enter")
    expect(part("stream-name")).to_have_text("bell-camera-heart")
    expect(part("stream-facts")).to_contain_text("3 classes · 0 images seen")
    assert page.url.endswith("#/bell-camera-heart")
    part("only-look").check()
    part("files").set_input_files([png("red"), {**png("blue"), "buffer": b"no image"}])
    expect(part("said")).to_have_text(re.compile(r"1 image answered.*1 could not be read, only"))
    expect(part("card")).to_have_count(2)
    expect(page.locator(".card.broken")).to_contain_text("Not answered")
    part("only-look").uncheck()


def try_the_icons(visit, expect):
    """The icons, one small batch after the other: the curves grow as they come."""
    part = visit.part
    part("new-stream").click()
    part("try-it").click()
    expect(part("stream-name")).to_have_text("icons")
    until(visit, CURVE, arg=["agreement", 2])
    few = visit.points("agreement")
    until(visit, CURVE, arg=["agreement", few + 3])
    expect(part("right-adapted")).to_contain_text("right")
    part("stop").click()
    expect(part("said")).to_contain_text("Stopped")
    expect(part("stream-icons")).to_have_text("Go on with the icons")
    assert visit.points("expected") >= 2


def freeze(visit, expect):
    """Frozen, it answers and learns nothing: the numbers that are to stay as they are."""
    part = visit.part
    part("freeze").click()
    expect(part("banner")).to_contain_text("Frozen by hand")
    frozen = visit.number("seen"), visit.number("version")
    assert frozen[0] >= 32
    part("files").set_input_files([png("green")])
    expect(part("said")).to_contain_text("nothing learned, since the stream is frozen")
    return frozen


def look_at_what_is_kept(visit, expect):
    """What is kept of a class, as the browser saw it."""
    page, part = visit.page, visit.part
    classes = page.locator("[data-testid=evidence-class]").all()
    fullest = max(classes, key=lambda each: float(each.get_attribute("data-queued")))
    name = fullest.get_attribute("data-class")
    answer = page.request.get(f"{page.url.partition('#')[0]}v1/streams/icons/queue/{name}")
    kept = [each["sample"] for each in answer.json()["samples"]]
    assert kept
    fullest.press("Enter")
    expect(part("queue-sample")).to_have_count(len(kept))
    expect(part("queue-sample").locator("img")).to_have_count(len(kept))
    shown = [each.get_attribute("data-sample") for each in part("queue-sample").all()]
    assert shown == kept


def tell_what_is_right(visit, expect):
    """Feedback: counted, and never learned from."""
    part = visit.part
    part("tell-adapted").first.click()
    other = part("tell-other").nth(1)
    other.focus()
    other.select_option(index=1)
    expect(part("chart-feedback")).to_contain_text("2 answers judged")
    assert visit.points("feedback") >= 1


def go_on(visit, expect):
    """No longer frozen."""
    visit.part("freeze").click()
    expect(visit.part("banner")).to_be_hidden()


def guard_and_roll_back(visit, expect):
    """A guard of icons, and back to the beginning: asked first, and Escape is no."""
    page, part = visit.page, visit.part
    part("guard-open").click()
    part("guard-icons").click()
    part("guard-put").click()
    expect(part("guard-state")).to_contain_text("Of 120 labelled images")
    assert visit.points("guard") >= 1
    part("rollback").last.click()
    page.keyboard.press("Escape")
    expect(part("ask")).to_be_hidden()
    part("rollback").last.click()
    visit.agree()
    expect(part("change").first).to_have_attribute("data-kind", "rollback")
    expect(page.locator("[data-testid=evidence-class]:not([data-queued='0'])")).to_have_count(0)


def come_back(visit, expect, server):
    """Reloaded, it is the same stream; killed and started again on its database, too."""
    page, part = visit.page, visit.part
    page.reload()
    expect(part("stream-facts")).to_contain_text("images seen")
    expect(part("chart-feedback")).to_contain_text("2 answers judged")
    version, points = visit.number("version"), visit.points("agreement")
    assert visit.problems == []
    server.kill()
    server.start()
    part("stream-icons").click()
    until(visit, CURVE, arg=["agreement", points + 1])
    part("stop").click()
    expect(part("said")).to_contain_text("Stopped")
    expect(part("stream-name")).to_have_text("icons")
    assert visit.number("version") > version
    expect(part("chart-feedback")).to_contain_text("2 answers judged")
    part("stream-select").select_option("bell-camera-heart")
    expect(part("stream-facts")).to_contain_text("3 classes · 0 images seen")


def test_a_person_creates_streams_tells_freezes_rolls_back_and_goes_on(browser, server, expect):
    visit = Visit(browser, viewport={"width": 1280, "height": 900})
    visit.page.goto(server.url)
    create_a_stream(visit, expect)
    try_the_icons(visit, expect)
    frozen = freeze(visit, expect)
    look_at_what_is_kept(visit, expect)
    tell_what_is_right(visit, expect)
    assert (visit.number("seen"), visit.number("version")) == frozen
    go_on(visit, expect)
    guard_and_roll_back(visit, expect)
    come_back(visit, expect, server)
    assert [problem for problem in visit.problems if AWAY not in problem] == []
    assert visit.hosts == {server.url.partition("//")[2]}


SMALL = """() => [...document.querySelectorAll("a, button, select, input, textarea, summary")]
    .filter(e => e.offsetParent && e.type !== "checkbox" && e.getBoundingClientRect().height < 40)
    .map(e => e.id || e.textContent)"""
HOSTILE = ["<img src=x onerror=alert(1)>", "x" * 90, "a/b & c"]


def test_a_phone_has_room_for_it_light_and_dark(browser, server, expect):
    backgrounds = set()
    for scheme in ("light", "dark"):
        phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
        visit = Visit(browser, color_scheme=scheme, **phone)
        page, part = visit.page, visit.part
        page.goto(server.url)
        expect(part("try-it")).to_be_visible()
        widths = [page.evaluate("document.documentElement.scrollWidth")]
        small = page.evaluate(SMALL)
        part("classes").fill("\n".join([*HOSTILE, f"none {scheme}"]))
        part("name").fill(f"{scheme}-" + "n" * 50)
        part("create").click()
        expect(part("evidence-class")).to_have_count(4)
        part("files").set_input_files([png("red"), {**png("blue"), "buffer": b"no image"}])
        expect(part("said")).to_contain_text("1 image answered")
        part("evidence-class").first.click()
        expect(part("queue")).to_be_visible()
        part("guard-open").click()
        widths.append(page.evaluate("document.documentElement.scrollWidth"))
        assert max(widths) <= 390 and small + page.evaluate(SMALL) == []
        assert HOSTILE[0] in part("evidence").inner_text()
        part("delete").click()
        visit.agree()
        expect(part("create-form")).to_be_visible()
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert visit.problems == [] and len(visit.hosts) == 1
        visit.context.close()
    assert len(backgrounds) == 2


def test_a_failed_guard_a_busy_server_and_a_missing_key_are_said(browser, server, expect):
    """What a healthy server does not do is put into its answers on their way."""
    visit = Visit(browser, viewport={"width": 1280, "height": 900})
    page, part = visit.page, visit.part
    asked, turned_away = [], []

    def refused(route):
        """No key, no answer."""
        if route.request.headers.get("authorization") == "Bearer sesame":
            return route.fallback()
        problem = {"status": 401, "detail": "needs a key"}
        return route.fulfill(status=401, json=problem, content_type="application/problem+json")

    def failed(route):
        """The guard froze the stream, until it is rolled back."""
        answer = route.fetch()
        share = {"right": 3, "accuracy": 0.3, "low": 0.1, "high": 0.6}
        guard = {"images": 10, "version": 7, "p_value": 0.004, "failed": True}
        guard |= {"adapted": share, "zero_shot": share | {"right": 9, "accuracy": 0.9}}
        frozen = {"frozen": True, "frozen_by": "guard", "answers_by": "zero-shot"}
        changed = {} if asked else {"guard": guard, "last_good_version": 5, "stale": True} | frozen
        route.fulfill(response=answer, json=answer.json() | changed)

    def rolled_back(route):
        asked.append(route.request.post_data_json)
        route.continue_(post_data='{"version": 0}')

    def busy(route):
        page.unroute("**/classify?*")
        turned_away.append(route.request.url)
        detail = {"status": 429, "detail": "too many images are waiting"}
        route.fulfill(status=429, json=detail, headers={"Retry-After": "0.1"})

    page.route("**/v1/**", refused)
    page.goto(server.url)
    part("key").fill("no key")
    part("key").press("Enter")
    expect(part("key-form")).to_contain_text("The server refused that key.")
    part("key").fill("sesame")
    part("key-save").click()
    part("classes").fill("bell, camera")
    part("name").fill("refusals")
    part("create").click()
    expect(part("evidence-class")).to_have_count(2)

    page.route("**/classify?*", busy)
    part("files").set_input_files([png("red")])
    expect(part("said")).to_contain_text("1 image answered")
    assert len(turned_away) == 1

    page.route("**/v1/streams/refusals", failed)
    page.route("**/v1/streams/refusals/rollback", rolled_back)
    page.reload()
    expect(part("banner")).to_contain_text("answers are zero-shot's")
    expect(part("banner")).to_contain_text("adapted has 3 right, zero-shot 9")
    expect(part("stale")).to_be_visible()
    part("banner-rollback").click()
    visit.agree()
    expect(part("banner")).to_be_hidden()
    assert asked == [{"version": 5}]
