"""Read a registry with mcp-registry-sdk, which asks /v0.1 and checks each answer: `sdk.py URL NAME`, JSON on stdout."""

# mypy: ignore-errors
# It does not see this folder's environment.

import asyncio
import json
import sys

from mcpreg import NotFoundError, RegistryClient, RegistrySettings
from mcpreg.sync import InMemorySyncStateStore, incremental_pull, resumable_scrape


async def read(url: str, name: str) -> dict[str, object]:
    async with RegistryClient(RegistrySettings(base_url=url)) as client:
        store = InMemorySyncStateStore()
        pages = [[entry.server.name for entry in one.upserts] async for one in resumable_scrape(client, store, limit=2)]
        changed = [entry.server.name async for one in incremental_pull(client, store) for entry in one.upserts]
        entry = await client.get_version(name)
        versions = await client.list_versions(name)
        exact = await client.get_version(name, entry.server.version)
        absent = ""
        try:
            await client.get_version(name, "0.0.0")
        except NotFoundError as error:
            absent = error.error
        found = [one.server.name async for one in client.iter_servers(search=name.upper(), version="latest")]
        return {
            "pages": pages,
            "changed": changed,
            "found": found,
            "versions": [one.server.version for one in versions.servers],
            "same": exact == entry,
            "url": entry.server.remotes[0].url,
            "status": entry.status,
            "published": entry.meta.official.published_at,
            "absent": absent,
        }


if __name__ == "__main__":
    json.dump(asyncio.run(read(*sys.argv[1:])), sys.stdout)
