"""The console's files: where they are served, with which headers, and what the package holds."""

import gzip
import re
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder

from pallas_gateway.config.loading.loader import Overrides
from pallas_gateway.features.console.files import STATIC, served_content, version
from tests.console import vendor
from tests.support.gateway import Agent, running, write_project
from tests.support.listener import reserved_port

AGENTS = {"echo": Agent()}
ROOT = Path(__file__).parents[2]
FOREIGN = {"Origin": "https://foreign.example"}
HTML = {"Accept": "text/html,*/*;q=0.8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src {connect}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
TYPES = {
    ".js": "text/javascript",
    ".json": "application/json",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


def client(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, headers=HTML, trust_env=False)


def gateway_headers(headers: httpx.Headers) -> dict[str, str]:
    return {name: headers[name] for name in headers if name.startswith(("content-security", "x-", "referrer", "cross"))}


async def test_the_page_and_its_files_have_the_headers_of_the_contract(tmp_path: Path) -> None:
    registries = ["https://other.example/pallas", "http://localhost:8000"]
    project = write_project(tmp_path, AGENTS, gateway={"console_registries": registries})
    async with running(project) as served, client(served.base_url) as http:
        page = await http.get("/console/")
        base = re.findall(r'src="([0-9a-f]{16}/)app.js"', page.text)[0]
        files = [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.suffix in TYPES]
        answers = [page, *[await http.get(f"/console/{base}{name}") for name in files]]
        known = await http.get("/console/", headers={"If-None-Match": page.headers["etag"]})
        others = [await http.get(path) for path in ("/", "/console", "/console/none")]
        others.append(await http.post("/console/"))
        others += [await http.get("/console/", headers=one) for one in ({"Host": "rebound.example"}, FOREIGN)]
    expected = {
        "content-security-policy": POLICY.format(connect="'self' https://other.example http://localhost:8000"),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
    }
    assert {answer.status_code for answer in answers} == {200}
    assert [one.status_code for one in others] == [307, 307, 404, 405, 421, 403]
    for answer in [*answers, known, *others]:
        assert gateway_headers(answer.headers) == expected
        assert "set-cookie" not in answer.headers
    assert (page.headers["content-type"], page.headers["cache-control"]) == ("text/html; charset=utf-8", "no-cache")
    assert (known.status_code, known.content) == (304, b"")
    for name, answer in zip(files, answers[1:], strict=True):
        assert answer.content == served_content((STATIC / name).read_bytes(), Path(name).suffix)
        assert answer.headers["content-type"].startswith(TYPES[Path(name).suffix])
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_the_page_of_an_answer_to_a_sign_in_is_that_of_the_console(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS)) as served, client(served.base_url) as http:
        page = await http.get("/console/")
        signed_in = await http.get("/console/signed-in?code=a-secret&state=one")
        others = [await http.get(f"/console/signed-in{more}") for more in ("/", ".html")]
        others.append(await http.post("/console/signed-in"))
    assert [one.status_code for one in others] == [404, 404, 405]
    assert gateway_headers(signed_in.headers) == gateway_headers(page.headers)
    assert (signed_in.status_code, signed_in.headers["cache-control"]) == (200, "no-cache")
    assert "a-secret" not in signed_in.text
    assert re.findall(r"<script([^>]*)>(.*?)</script>", signed_in.text) == [
        (f' type="module" src="{version()}/signed_in.js"', "")
    ]


async def test_the_page_may_reach_the_authorization_server_where_people_sign_in(tmp_path: Path) -> None:
    jwt = {"issuer": "https://login.example/realms/one", "jwks_uri": "https://keys.example/jwks"}
    policies = []
    for name, more in (("off", {}), ("on", {"console_client_id": "pallas"})):
        project = write_project(tmp_path / name, AGENTS, gateway={"auth": {"jwt": jwt, **more}})
        async with running(project) as served, client(served.base_url) as http:
            policies.append((await http.get("/console/")).headers["content-security-policy"])
    assert policies == [POLICY.format(connect=one) for one in ("'self'", "'self' https://login.example")]


async def test_files_are_compressed_for_clients_that_accept_it(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS)) as served, client(served.base_url) as http:
        page = await http.get("/console/", headers={"Accept-Encoding": "br, gzip;q=0.5"})
        plain = await http.get("/console/", headers={"Accept-Encoding": "identity"})
        known = await http.get("/console/", headers={"If-None-Match": page.headers["etag"]})
    assert (page.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert page.content == plain.content
    assert int(page.headers["content-length"]) < int(plain.headers["content-length"])
    assert {one.headers["vary"] for one in (page, plain)} == {"Accept-Encoding"}
    assert known.status_code == 304


_IMPORT = re.compile(r"""(?:\bfrom|^import|[;}]import)\s*['"](\.[^'"]+)""", re.MULTILINE)


def modules_of(*names: str) -> set[str]:
    """Return the modules with all that they import, but for what is imported while they run."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            text = re.sub(r"^ ?\*.*|/\*\*.*?\*/", "", (STATIC / name).read_text(), flags=re.MULTILINE)
            imported = [(STATIC / name).parent / one for one in _IMPORT.findall(text)]
            waiting += [path.resolve().relative_to(STATIC.resolve()).as_posix() for path in imported]
    return found


def test_the_page_requests_the_modules_of_its_first_view_at_once() -> None:
    page = (STATIC / "index.html").read_text()
    preloaded = re.findall(r'rel="modulepreload" href="static/([^"]+)"', page)
    assert sorted([*preloaded, "app.js"]) == sorted(modules_of("app.js"))
    script = (STATIC / "app.js").read_text()
    of_chat = re.findall(r"const OF_CHAT = \[([^\]]*)\]", script)[0]
    script = script.replace("...OF_CHAT", of_chat).replace("Chat: OF_CHAT", f"Chat: [{of_chat}]")
    views = re.findall(r"(\w+): \[([^\]]*)\]", script.partition("const LATER = {")[2].partition("\n};")[0])
    assert len(views) == 12
    for view, files in views:
        module = f"views/{re.sub('(?<=.)([A-Z])', r'_\1', view).lower()}.js"
        listed = {f"{name}.js" for name in re.findall("'([^']+)'", files)}
        assert listed == modules_of(module) - modules_of("app.js") - {module}, module


async def test_the_page_has_no_inline_script_or_style_and_only_relative_urls() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\son\w+=|style=|<script(?![^>]*\bsrc=)|[\"'](/|https?:)", page)
    for script in STATIC.rglob("*.js"):
        found = re.findall(r"""(?:from|import)\s*\(?['"]([^'"]+)""", script.read_text())
        assert [name for name in found if not name.startswith(("./", "../"))] == []


async def test_other_paths_are_not_found(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS)) as served, client(served.base_url) as http:
        version = re.findall(r'src="([0-9a-f]{16})/', (await http.get("/console/")).text)[0]
        others = ("x", "0123456789abcdef/app.js", "static/app.js", "../agents.yaml", f"{version}/../files.py")
        missing = [(await http.get(f"/console/{path}")).status_code for path in (*others, f"{version}/")]
        posted = await http.post("/console/")
    assert missing == [404] * 6
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")


async def test_browsers_are_redirected_to_it_by_relative_locations(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS)) as served, client(served.base_url) as http:
        found = {path: (await http.get(path)).headers.get("location") for path in ("/", "/console")}
        as_json = await http.get("/", headers={"Accept": "application/json"})
    assert found == {"/": "console/", "/console": "console/"}
    assert as_json.json()["agents"][0]["name"] == "echo"


@pytest.mark.parametrize(
    ("settings", "is_on"),
    [
        ({}, True),
        ({"host": "127.0.0.1"}, True),
        ({"console": False}, False),
        ({"host": "0.0.0.0"}, False),  # noqa: S104  the default beyond this machine is what is tested
        ({"host": "0.0.0.0", "console": True}, True),  # noqa: S104
    ],
)
async def test_it_is_on_by_default_where_only_this_machine_is_bound(
    settings: dict[str, Any], is_on: bool, tmp_path: Path
) -> None:
    async with running(write_project(tmp_path, AGENTS, gateway=settings)) as served, client(served.base_url) as http:
        page, front = await http.get("/console/"), await http.get("/")
    assert (page.status_code, front.status_code) == ((200, 307) if is_on else (404, 200))
    if not is_on:
        assert page.json()["error"] == "the console is off; `gateway.console: true` in agents.yaml enables it"


async def test_a_reload_switches_it(tmp_path: Path) -> None:
    async with running(write_project(tmp_path, AGENTS)) as served, client(served.base_url) as http:
        before = await http.get("/console/")
        served.project.edit(lambda document: document["gateway"].update(console=False))
        await served.reload()
        after = await http.get("/console/")
    assert (before.status_code, after.status_code) == (200, 404)


async def test_per_port_it_is_on_the_registrys_port_and_may_call_the_agents_ports(tmp_path: Path) -> None:
    with ExitStack() as reserved:
        registry, one = (reserved.enter_context(reserved_port()) for _ in range(2))
        agents = {"one": Agent(settings={"port": one})}
        deployment = {"registry_port": registry, "host": "localhost"}
        project = write_project(tmp_path, agents, gateway={"host": "127.0.0.1"}, deployment=deployment)
        async with running(project, overrides=Overrides(per_port=True)) as served, client(served.base_url) as http:
            page = await http.get("/console/")
            on_agent = await http.get(f"http://127.0.0.1:{one}/console/")
            allowed = [
                await preflight(http, f"http://127.0.0.1:{one}/mcp", f"http://{host}:{registry}")
                for host in ("localhost", "127.0.0.1", "[::1]", "other.example")
            ]
    assert page.headers["content-security-policy"] == POLICY.format(connect=f"'self' http://localhost:{one}")
    assert on_agent.status_code == 404
    assert allowed == [True, True, True, False]


async def preflight(http: httpx.AsyncClient, url: str, origin: str) -> bool:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "mcp-method"}
    answer = await http.options(url, headers=asked)
    return bool(answer.headers.get("access-control-allow-origin") == origin)


def test_the_vendored_libraries_are_those_of_the_list() -> None:
    assert vendor.SUMS.read_text() == vendor.sums()
    names = {path.name for path in vendor.VENDOR.iterdir()}
    assert {vendor.name_of(specifier) for specifier in vendor.MODULES} < names
    licences = {f"LICENSE-{vendor.name_of(one.removesuffix('/hooks'))[:-3]}.txt" for one in vendor.MODULES}
    assert licences < names


def test_bare_specifiers_become_file_names() -> None:
    module = 'import{a}from"preact";import"preact/hooks";export{b}from"@preact/signals-core";\n'
    expected = 'import{a}from"./preact.js";import"./preact-hooks.js";export{b}from"./preact-signals-core.js";\n'
    assert vendor.browser_module(f"{module}//# sourceMappingURL=x.map\n") == expected


def test_all_scripts_and_styles_are_at_most_180_kilobytes_compressed() -> None:
    served = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".json", ".html", ".svg")]
    sizes = [len(gzip.compress(served_content(path.read_bytes(), path.suffix))) for path in served]
    assert sum(sizes) <= 180_000


def test_scripts_are_served_without_their_documentation_and_with_all_their_code() -> None:
    documented = b"/** Adds.\n * @param {number} one\n */\n"
    code = b"export const add = (/** @type {any} */ one) => one;\n/** @type {any} */ (window).a = '/** b';\n"
    script = documented + code
    assert served_content(script, ".js") == code
    assert served_content(script, ".css") == script


def test_a_wheel_holds_the_files(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    held = {
        name.partition("/static/")[2] for name in zipfile.ZipFile(wheel).namelist() if "features/console/static" in name
    }
    assert held == {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
