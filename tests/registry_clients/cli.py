"""Read a registry with mcp-registry-cli, which asks /v0: `cli.py URL NAME`, JSON on stdout."""

# mypy: ignore-errors
# It does not see this folder's environment.

import json
import sys

from mcp_registry_cli.api import MCPRegistryAPI


def read(url: str, name: str) -> dict[str, object]:
    api = MCPRegistryAPI()
    api.BASE_URL = url
    pages, cursor = [], None
    while not pages or cursor:
        listed = api.list_servers(cursor=cursor, limit=2)
        pages.append([server.name for server in listed["servers"]])
        cursor = listed["next_cursor"]
    server = api.get_server_details(name)
    return {
        "pages": pages,
        "found": [one.name for one in api.search_servers(name)["servers"]],
        "versions": [one.version for one in api.get_server_versions(name)],
        "url": server.remotes[0]["url"],
        "status": server.status,
    }


if __name__ == "__main__":
    json.dump(read(*sys.argv[1:]), sys.stdout)
