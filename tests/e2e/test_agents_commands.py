"""`pallas-gateway agents …`, and `export` and `apply` with `--url`, against the database of a running gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.agents_api import AgentsApi, agents_api
from tests.support.commands import Ran
from tests.support.finished import finished
from tests.support.gateway import Agent, running, write_project
from tests.support.stored_threads import agents_feature_of
from tests.support.terminal import Terminal, at_terminal
from tests.support.waiting import eventually

INSTRUCTION = "You write poems.\nAbout the sea."
EVERYTHING = {
    "title": "Poet",
    "description": "Writes: poems",
    "instruction": INSTRUCTION,
    "model": "passthrough",
    "agents": ["echo"],
    "default_params": {"temperature": 0.5, "max_tokens": 100, "stop": ["END"]},
    "examples": ["A poem, please."],
    "max_iterations": 4,
    "loop_repeat_threshold": 2,
    "call_timeout_seconds": 12.5,
    "max_in_flight": 2,
    "approve": ["*/delete_*"],
    "tool_limits": {"echo/*": 3},
    "max_tokens_per_call": 1000,
    "human_input": True,
}


@dataclass(frozen=True)
class Commands:
    """Commands of one caller at one gateway."""

    api: AgentsApi
    folder: Path
    key: str = "everything"

    @property
    def url(self) -> str:
        return self.api.served.base_url

    @property
    def environ(self) -> dict[str, str]:
        return {"PALLAS_GATEWAY_URL": self.url, "PALLAS_BEARER": self.key, "TMPDIR": str(self.folder)}

    async def __call__(self, *arguments: str, given: str | None = None, **environ: str) -> Ran:
        return await finished(*arguments, folder=self.folder, environ={**self.environ, **environ}, given=given)

    async def agents(self, *arguments: str, **more: Any) -> Ran:
        return await self("agents", *arguments, **more)

    async def apply(self, text: str, *options: str) -> Ran:
        return await self("apply", "--url", self.url, "-f", self.file(text), *options)

    def file(self, text: str) -> str:
        (self.folder / "new.yaml").write_text(text)
        return "new.yaml"

    async def versions(self, name: str = "poet") -> int:
        return len((await self.api.get(f"/{name}/versions", key="everything")).json()["versions"])

    def at_terminal(self, *arguments: str, **environ: str) -> AbstractAsyncContextManager[Terminal]:
        return at_terminal(["agents", *arguments], self.folder, {**self.environ, **environ})

    def editor(self, *scripts: str) -> str:
        """Return an editor that runs one of the scripts each time, with the file as `$1`; then it fails."""
        for number, script in enumerate(scripts, start=1):
            (self.folder / f"edit{number}").write_text(script)
        program = self.folder / "editor"
        program.write_text(
            '#!/bin/sh\nn=$(cat count 2>/dev/null || echo 0); n=$((n+1)); echo $n > count; cp "$1" seen$n\n'
            "[ -f edit$n ] || exit 9\n. ./edit$n\n"
        )
        program.chmod(0o755)
        return f"'{program}'"

    def seen(self, number: int) -> str:
        """Return the file as the editor has opened it."""
        return (self.folder / f"seen{number}").read_text()


@asynccontextmanager
async def commands(path: Path, key: str = "everything", **gateway: Any) -> AsyncIterator[Commands]:
    folder = path / "here"
    folder.mkdir()
    async with agents_api(path / "project", **gateway) as api:
        yield Commands(api, folder, key)


async def test_an_agent_is_made_shown_copied_restored_and_deleted(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        text = yaml.safe_dump({"agents": {"poet": EVERYTHING}})
        made = await run.agents("create", "-f", run.file(text))
        assert (made.code, made.out, made.err) == (0, f"{run.url}: added poet (version 1)\n", "")
        again = await run.agents("create", "-f", "new.yaml")
        assert (again.code, again.out) == (2, "")
        assert again.err == f"{run.url} has poet already; `apply --url` and `agents edit` change agents.\n"

        shown = await run.agents("get", "poet")
        assert shown.out.startswith("# Agent 'poet', version 1, owner everything, ")
        assert yaml.safe_load(shown.out) == {"agents": {"poet": EVERYTHING}}
        document = (await run.agents("get", "poet", "-o", "json")).json
        assert (document["version"], document["source"], document["maxIterations"]) == (1, "database", 4)

        copied = await run.agents("create", "bard", "--copy-of", "poet")
        assert (copied.code, copied.out) == (0, "added bard (version 1)\n")
        assert (await run.api.document("bard", key="everything"))["instruction"] == INSTRUCTION
        of_file = await run.agents("create", "own", "--copy-of", "declared")
        assert of_file.out == "added own (version 1)\n"

        changed = yaml.safe_dump({"agents": {"poet": {"instruction": "You are brief.", "model": "passthrough"}}})
        assert (await run.apply(changed, "--yes")).code == 0
        listed = await run.agents("versions", "poet")
        assert [line.split()[:2] for line in listed.out.splitlines()] == [
            ["VERSION", "EDITOR"],
            ["2", "everything"],
            ["1", "everything"],
        ]
        assert [one["version"] for one in (await run.agents("versions", "poet", "--json")).json["versions"]] == [2, 1]
        earlier = await run.agents("get", "poet", "--version", "1")
        assert yaml.safe_load(earlier.out) == {"agents": {"poet": EVERYTHING}}
        restored = await run.agents("restore", "poet", "1")
        assert restored.out.endswith("restored version 1 of poet (version 3)\n")
        assert "-    instruction: You are brief." in restored.out
        assert (await run.agents("get", "poet")).out.partition("\n")[2] == earlier.out.partition("\n")[2]

        asked = await run.agents("delete", "bard")
        assert (asked.code, asked.err) == (1, "nothing was deleted; --yes deletes it\n")
        thread = await run.api.ask("POST", "/bard/threads", key="everything", json={})
        path = f"{run.url}/api/v1/threads/{thread.json()['id']}/messages"
        key = {"Authorization": "Bearer everything"}
        assert (await run.api.http.get(path, headers=key)).status_code == 200
        deleted = await run.agents("delete", "bard", "--yes", "--threads")
        assert (deleted.code, deleted.out) == (0, "deleted bard and all threads with it\n")
        assert (await run.api.http.get(path, headers=key)).status_code == 404
        gone = await run.agents("get", "bard")
        assert gone.code == 2
        assert gone.err == f"{run.url} has no agent 'bard' that you may see; `agents` lists them.\n"
        no_versions = await run.agents("versions", "bard")
        assert (no_versions.code, no_versions.err) == (2, gone.err)


async def test_an_agent_is_made_by_options(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        options = ("--model", "passthrough", "--description", "Reviews.", "--sub-agent", "echo", "--set", "maxTokens=9")
        made = await run.agents("create", "poet", "--instruction", "-", *options, given="You review.\n")
        assert (made.code, made.out) == (0, "added poet (version 1)\n")
        shown = yaml.safe_load((await run.agents("get", "poet")).out)
        assert shown["agents"]["poet"] == {
            "description": "Reviews.",
            "instruction": "You review.",
            "model": "passthrough",
            "agents": ["echo"],
            "default_params": {"max_tokens": 9},
        }
        copied = await run.agents("create", "bard", "--copy-of", "poet", "--title", "The Bard")
        assert copied.code == 0
        assert (await run.api.document("bard", key="everything"))["title"] == "The Bard"
        wrong = await run.agents("create", "x", "--instruction", "y", "--model", "forbidden", "--server", "nowhere")
        assert (wrong.code, wrong.out) == (2, "")
        assert [line.partition(":")[0] for line in wrong.err.splitlines()] == ["model", "servers.0"]
        range_ = await run.agents("create", "x", "--instruction", "y", "--set", "temperature=9")
        assert (range_.code, range_.err) == (2, "temperature takes a number from 0 to 2, not 9.\n")
        for arguments in (
            ["poet"],
            ["x", "-f", "f"],
            ["x", "--instruction", "y", "--copy-of", "poet"],
            ["--copy-of", "x"],
        ):
            ran = await run.agents("create", *arguments)
            assert (ran.code, ran.err) == (2, HOW_TO_CREATE)


async def test_the_listing_shows_source_version_and_owner_of_agents_of_the_database(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        without = await run.agents()
        assert without.out.splitlines()[0].split() == ["AGENT", "STATE", "TITLE", "MODEL", "URL", "DESCRIPTION"]
        await run.api.make(key="everything", wait=True)
        listed = await run.agents()
        assert listed.out.splitlines()[0].split()[:5] == ["AGENT", "STATE", "SOURCE", "VERSION", "OWNER"]
        [poet] = [line.split() for line in listed.out.splitlines() if line.startswith("poet ")]
        assert poet[:5] == ["poet", "ready", "database", "1", "everything"]
        found = {one["name"].rpartition("/")[2]: one for one in (await run.agents("--json")).json}
        assert (found["poet"]["source"], found["poet"]["version"], found["poet"]["owner"]) == (
            "database",
            1,
            "everything",
        )
        assert "source" not in found["echo"]


async def test_deleting_asks_at_a_terminal(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything")
        for answer, code in (("n", 1), ("y", 0)):
            async with run.at_terminal("delete", "poet") as terminal:
                await terminal.shows(f"Delete poet (version 1) at {run.url}? [y/N]")
                await terminal.enter(answer)
                await terminal.shows("deleted" if answer == "y" else "nothing was deleted")
                assert await terminal.ends() == code
        assert (await run.api.get("/poet", key="everything")).status_code == 404


async def test_what_the_gateway_refuses_is_shown_in_its_words(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        of_file = await run.agents("delete", "declared", "--yes")
        assert of_file.code == 1
        assert "is of agents.yaml" in of_file.err
        edited = await run.agents("edit", "declared")
        assert (edited.code, edited.err) == (2, "Agent 'declared' is one of agents.yaml; change it there.\n")
        await run.api.make("user", key="everything", agents=["echo"])
        await run.api.make("poet", key="everything")
        await run.api.ask("PATCH", "/user", key="everything", match="*", json={"agents": ["poet"]})
        used = await run.agents("delete", "poet", "--yes")
        assert (used.code, "is a sub-agent of user" in used.err) == (1, True)
        nobody = await finished(
            "agents", "get", "poet", folder=run.folder, environ={**run.environ, "PALLAS_BEARER": ""}
        )
        assert (nobody.code, "a token is required" in nobody.err or "401" in nobody.err) == (1, True)


async def test_a_gateway_without_a_database_names_the_setting(tmp_path: Path) -> None:
    async with running(write_project(tmp_path / "project", {"echo": Agent()})) as served:
        for arguments in (
            ["agents", "get", "echo"],
            ["agents", "versions", "echo"],
            ["export", "--url", served.base_url],
        ):
            ran = await finished(*arguments, folder=tmp_path, environ={"PALLAS_GATEWAY_URL": served.base_url})
            assert (ran.code, "`gateway.database` in agents.yaml" in ran.err) == (1, True)


async def test_what_is_exported_and_applied_again_changes_nothing(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.apply(yaml.safe_dump({"agents": {"poet": EVERYTHING, "small": SMALL}}), "--yes")
        before = await stored(run)
        exported = await run("export", "--url", run.url)
        assert yaml.safe_load(exported.out) == {"agents": {"poet": EVERYTHING, "small": SMALL}}
        piped = await run("apply", "--url", run.url, "-f", "-", given=exported.out)
        assert (piped.code, piped.out, piped.err) == (0, f"{run.url}: nothing changes\n", "")
        for form in ("get", "export"):
            arguments = ["agents", "get", "poet"] if form == "get" else ["export", "poet", "--url", run.url]
            one = await run(*arguments)
            assert (await run.apply(one.out)).out == f"{run.url}: nothing changes\n"
        of_file = await run("export", "declared", "--url", run.url)
        assert (await run.apply(of_file.out)).out == f"{run.url}: nothing changes\n"
        assert await stored(run) == before
        assert (await run("export", "poet", "--url", run.url)).out == (
            await run("export", "poet", "--url", run.url)
        ).out


async def test_a_change_is_shown_checked_and_made_only_if_it_is_wanted(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything")
        text = "agents: {poet: {instruction: You are brief., model: passthrough}}"
        dry = await run.apply(text, "--dry-run")
        assert (dry.code, dry.err) == (0, "nothing was changed: --dry-run\n")
        assert "+    instruction: You are brief." in dry.out
        asked = await run.apply(text)
        assert (asked.code, asked.out, asked.err) == (1, dry.out, "nothing was changed; --yes makes the changes\n")
        assert await run.versions() == 1
        made = await run.apply(text, "--yes")
        assert (made.code, made.out) == (0, f"{dry.out}{run.url}: changed poet (version 2)\n")
        assert await run.versions() == 2


async def test_agents_that_name_each_other_are_made_in_their_order(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        text = (
            "agents: {boss: {instruction: x, model: passthrough, agents: [aide]}}\n---\n"
            "agents: {aide: {instruction: y, model: passthrough}}\n"
        )
        made = await run.apply(text, "--yes")
        assert made.out.endswith(f"{run.url}: added aide (version 1); added boss (version 1)\n")


async def test_all_problems_have_file_and_line_and_nothing_is_changed(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        text = (
            "agents:\n  poet:\n    instruction: Read ${HOME}.\n    model: forbidden\n    max_iterations: 99\n"
            "    default_params:\n      temperature: 9\n---\n"
            "kind: agent\nmetadata: {name: other}\nspec:\n  systemPrompt: x\n  llm: forbidden\n  project: p\n---\n"
            "agents:\n  twice: {instruction: x, model: passthrough, params: {seed: 1}, default_params: {seed: 1}}\n"
        )
        ran = await run.apply(text, "--yes")
        assert (ran.code, ran.out) == (2, "")
        assert "new.yaml:17: agents.twice.params: is another name of 'default_params'" in ran.err
        ran = await run.apply(text.rpartition("---")[0], "--yes")
        assert (ran.code, ran.out) == (2, "")
        places = [line.split(": ")[:2] for line in ran.err.splitlines() if line.startswith("new.yaml")]
        assert places == [
            ["new.yaml:3", "agents.poet.instruction"],
            ["new.yaml:4", "agents.poet.model"],
            ["new.yaml:5", "agents.poet.max_iterations"],
            ["new.yaml:7", "agents.poet.default_params.temperature"],
            ["new.yaml:13", "agents.other.model"],
        ]
        assert (await run.api.get(key="everything")).json()["agents"][-1]["source"] == "file"


async def test_documents_of_another_platform_are_applied_and_what_is_left_out_is_reported(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        document = (
            "kind: agent\nmetadata: {name: deployer}\nspec:\n  systemPrompt: You deploy.\n  llm: {name: passthrough}\n"
            "  project: dev\n  extras: {lora: 1}\n  defaultParams: {maxTokens: 5, top_p: 0.5}\n"
        )
        made = await run.apply(document, "--yes")
        assert made.out.endswith("added deployer (version 1)\n")
        assert [line.split(":")[:3] for line in made.err.splitlines()] == [
            ["new.yaml", "6", " spec.project"],
            ["new.yaml", "7", " spec.extras"],
        ]
        assert (await run.api.document("deployer", key="everything"))["params"] == {"max_tokens": 5, "top_p": 0.5}
        await run.api.ask("PATCH", "/deployer", key="everything", match="*", json={"agents": ["echo"]})
        assert (await run.apply(document)).out == f"{run.url}: nothing changes\n"


async def test_an_agent_whose_instruction_may_not_be_read_is_named_and_not_exported(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything")
        viewer = {**run.environ, "PALLAS_BEARER": "viewer"}
        ran = await finished("export", "--url", run.url, folder=run.folder, environ=viewer)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == "Not exported, because you may not read their instructions: poet.\n"
        one = await finished("agents", "get", "poet", folder=run.folder, environ=viewer)
        assert (one.code, "you may not read its instruction" in one.err) == (2, True)


async def test_a_change_of_somebody_else_while_the_question_is_open_is_not_overwritten(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", title="Old")
        text = yaml.safe_dump({"agents": {"another": SMALL, "poet": {**SMALL, "title": "Mine"}}})
        arguments = ["apply", "--url", run.url, "-f", run.file(text)]
        async with at_terminal(arguments, run.folder, run.environ) as terminal:
            await terminal.shows(f"Change another, poet at {run.url}? [y/N]")
            await run.api.ask("PATCH", "/poet", key="everything", match="*", json={"title": "Theirs"})
            await terminal.enter("y")
            await terminal.shows("added another (version 1)")
            await terminal.shows("Agent 'poet' was changed meanwhile; it stays as it is now. Apply again.")
            assert await terminal.ends() == 1
        assert (await run.api.document(key="everything"))["title"] == "Theirs"


async def test_while_the_database_is_away_nothing_passes_for_its_agents(tmp_path: Path) -> None:
    database = "sqlite:///folder/pallas.db"
    folder = tmp_path / "project" / "folder"
    async with commands(tmp_path, database=database) as run:  # there is no such folder yet
        await eventually(lambda: agents_feature_of(run.api.served.gateway).watch.is_away, what="the outage is noticed")
        exported = await run("export", "--url", run.url)
        assert (exported.code, exported.out) == (1, "")
        assert exported.err == (
            f"The database of {run.url} cannot be used now, so agents may be missing. Try again later.\n"
        )
        applied = await run.apply("agents: {poet: {instruction: x, model: passthrough}}", "--yes")
        assert (applied.code, applied.out) == (1, "")
        assert "database cannot be used now" in applied.err
        listed = await run.agents()
        assert (listed.code, "declared" in listed.out) == (0, True)
        assert listed.err == (
            f"The database of {run.url} cannot be used now, so agents of it may be missing in the list.\n"
        )
    assert not folder.exists()


async def test_nothing_is_exported_while_a_database_that_was_there_is_away(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", wait=True)
        file = tmp_path / "project" / "pallas.db"
        file.rename(file.with_suffix(".aside"))
        for _ in ("at once", "when it is noticed"):
            exported = await run("export", "--url", run.url)
            assert (exported.code, exported.out) == (1, "")
            assert "database" in exported.err
            await eventually(
                lambda: agents_feature_of(run.api.served.gateway).watch.is_away, what="the outage is noticed"
            )
        listed = await run.agents()
        assert (listed.code, "poet" in listed.out) == (0, True)
        assert listed.err == (
            f"The database of {run.url} cannot be used now, so agents of it may be missing in the list.\n"
        )
        file.with_suffix(".aside").rename(file)


async def test_nothing_passes_for_the_agents_of_a_database_that_was_empty_and_is_away(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:  # another replica may have made agents
        file = tmp_path / "project" / "pallas.db"
        file.rename(file.with_suffix(".aside"))
        await eventually(lambda: agents_feature_of(run.api.served.gateway).watch.is_away, what="the outage is noticed")
        exported = await run("export", "--url", run.url)
        assert (exported.code, exported.out) == (1, "")
        assert "agents may be missing" in exported.err
        file.with_suffix(".aside").rename(file)


async def test_an_unchanged_file_changes_nothing_and_an_empty_one_cancels(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything")
        same = await run.agents("edit", "poet", VISUAL="true", EDITOR="false")
        assert (same.code, same.out) == (0, "poet: nothing changes\n")
        spaced = await run.agents("edit", "poet", VISUAL=run.editor("echo '# a note' >> $1"))
        assert (spaced.code, spaced.out) == (0, "poet: nothing changes\n")
        empty = await run.agents("edit", "poet", VISUAL="truncate -s 0")
        assert (empty.code, empty.err) == (1, "The file is empty, so nothing was changed.\n")
        failed = await run.agents("edit", "poet", VISUAL="false")
        assert (failed.code, failed.err) == (1, "Nothing was changed, because the editor false ended with 1.\n")
        missing = await run.agents("edit", "poet", VISUAL="no-such-editor")
        assert missing.code == 1
        assert "the editor no-such-editor cannot be started: No such file or directory; set EDITOR" in missing.err
        assert await run.versions() == 1
        assert leftovers(run) == []


async def test_problems_are_shown_above_their_lines_until_they_are_mended(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", maxIterations=4)
        wrong = "sed -i 's/model: passthrough/model: forbidden/; s/max_iterations: 4/max_iterations: 99/' $1"
        mended = "sed -i 's/model: forbidden/model: passthrough/; s/max_iterations: 99/max_iterations: 5/' $1"
        ran = await run.agents(
            "edit", "poet", VISUAL=run.editor(wrong, "echo '  - x: [' >> $1", f"sed -i '$d' $1; {mended}")
        )
        assert (ran.code, ran.out) == (0, "changed poet (version 2)\n")
        lines = run.seen(2).splitlines()
        at = lines.index("    model: forbidden")
        assert lines[at - 1].startswith("    # >>> agents.poet.model: ")
        assert lines[lines.index("    max_iterations: 99") - 1] == (
            "    # >>> agents.poet.max_iterations: must be at most 20"
        )
        assert "# >>> agents.poet" not in run.seen(3)
        assert "# >>> not valid YAML: " in run.seen(3)
        assert (await run.api.document(key="everything"))["maxIterations"] == 5
        assert leftovers(run) == []


async def test_what_stays_wrong_is_kept_in_a_file_that_apply_takes(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything")
        ran = await run.agents("edit", "poet", VISUAL=run.editor("sed -i 's/passthrough/forbidden/' $1", "true"))
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith(
            "Your text is not stored, because you saved it without another change. It is kept: pallas-gateway apply"
        )
        [kept] = leftovers(run)
        assert "model: forbidden" in kept
        assert ">>>" not in kept
        renamed = await run.agents("edit", "poet", VISUAL=run.editor("sed -i 's/  poet:/  bard:/' $1", "true"))
        assert renamed.code == 1
        assert await run.versions() == 1


async def test_a_conflict_shows_what_others_have_changed_and_loses_nothing(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", title="Old")
        other = (
            f"curl -s -X PATCH {run.url}/api/v1/agents/poet -H 'Authorization: Bearer everything' -H 'If-Match: *'"
            " -H 'Content-Type: application/json' -d '{\"description\": \"Theirs\"}' > /dev/null"
        )
        mine = "sed -i 's/title: Old/title: Mine/' $1"
        ran = await run.agents(
            "edit", "poet", VISUAL=run.editor(f"{other}; {mine}", "sed -i '/^# >>>/d; s/title: Mine/title: Both/' $1")
        )
        assert (ran.code, ran.out) == (0, "changed poet (version 3)\n")
        shown = run.seen(2)
        assert "version 1 is now version 2" in shown
        assert "# >>> +    description: Theirs" in shown
        assert "title: Mine" in shown
        document = await run.api.document(key="everything")
        assert (document["title"], document["version"]) == ("Both", 3)

        (run.folder / "count").unlink()
        ran = await run.agents(
            "edit",
            "poet",
            VISUAL=run.editor(f"{other.replace('Theirs', 'Again')}; {mine.replace('Old', 'Both')}", "true"),
        )
        assert ran.code == 1
        [kept] = leftovers(run)
        assert "title: Mine" in kept


async def test_what_was_typed_is_kept_if_the_gateway_goes_away(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", title="Old")
        gone = await run.agents(
            "edit",
            "poet",
            VISUAL=run.editor(
                "sed -i 's/title: Old/title: Mine/' $1; curl -s -o /dev/null -X DELETE "
                f"{run.url}/api/v1/agents/poet -H 'Authorization: Bearer everything' -H 'If-Match: *'"
            ),
        )
        assert (gone.code, "Your text is not stored. " in gone.err) == (1, True)
        [kept] = leftovers(run)
        assert "title: Mine" in kept


async def test_edit_at_a_terminal_stores_what_was_saved(tmp_path: Path) -> None:
    async with commands(tmp_path) as run:
        await run.api.make(key="everything", title="Old")
        asking = run.editor("printf 'New title: '; read title; sed -i \"s/title: Old/title: $title/\" $1")
        async with run.at_terminal("edit", "poet", EDITOR=asking, VISUAL="") as terminal:
            await terminal.shows("New title: ")
            await terminal.enter("Typed")
            await terminal.shows("changed poet (version 2)")
            assert await terminal.ends() == 0
        assert (await run.api.document(key="everything"))["title"] == "Typed"
        assert run.seen(1).startswith("# Agent 'poet', version 1, owner everything, ")
        assert leftovers(run) == []


HOW_TO_CREATE = "Give NAME with --instruction TEXT or --copy-of OTHER, or -f FILE.\n"
SMALL = {"instruction": "You are small.", "model": "passthrough"}


def leftovers(run: Commands) -> list[str]:
    """Return the texts that `edit` has kept."""
    folders = run.folder.glob("pallas-agents-*")
    return [file.read_text() for folder in folders for file in folder.iterdir()]


async def stored(run: Commands) -> str:
    """Return all versions of the agents of the database, byte by byte."""
    names = [
        one["name"] for one in (await run.api.get(key="everything")).json()["agents"] if one["source"] == "database"
    ]
    pages = [await run.api.get(f"/{name}/versions", key="everything") for name in names]
    return json.dumps([one.text for one in pages])
