"""`apply` of `kind: agent` documents, in which another platform describes agents."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import Command

BEFORE = """\
name: demo
agents:
  old:   # kept
    instruction: You are old.
    description: Old
    servers: [notes]
    approve: ["notes/*"]
"""
DOCUMENT = """\
apiVersion: mcpctl.io/v1
kind: agent
metadata: {name: deployer}
spec:
  description: Deploys code.
  llm: {name: generic.qwen3}
  project: {name: dev}
  proxyModelName: informational
  extras: {lora: 1}
  systemPrompt: |
    You deploy code.
    Look at the script first.
  defaultParams:
    temperature: 0.2
    max_tokens: 4096
    topP: 0.9
    stop: ["</deploy>"]
    messages: [{role: user, content: hi}]
---
- kind: agent
  metadata: {name: old}
  spec: {systemPrompt: You are new., llm: generic.new, project: dev, proxyModelName: null, extras: {}}
- {kind: Agent, name: flat, llm: generic.a, systemPrompt: You are flat.}
---
kind: List
items:
  - {kind: agent, metadata: {name: listed, labels: {team: x}}, spec: {systemPrompt: You are listed.}, status: {x: 1}}
---
agents: {own: {instruction: You are own.}}
"""
FASTAGENT = "default_model: passthrough\nmcp: {servers: {notes: {url: http://localhost:1/mcp}}}\n"
NO_WORD = "no key says the same"


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "agents.yaml").write_text(BEFORE)
    (folder / "fastagent.config.yaml").write_text(FASTAGENT)
    return folder


def apply(run: Command, folder: Path, text: str, *options: str) -> Any:
    (folder / "new.yaml").write_text(text)
    return run("apply", "-f", folder / "new.yaml", *options)


def agents_in(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "agents.yaml").read_text())["agents"])


def test_documents_of_several_forms_in_one_stream_become_agents_and_what_is_left_out_is_reported_once(
    run: Command, project: Path
) -> None:
    ran = apply(run, project, DOCUMENT, "--yes")

    assert ran.code == 0
    assert ran.out.endswith("agents.yaml: added deployer, flat, listed, own; changed old\n")
    assert agents_in(project) == {
        "old": {
            "instruction": "You are new.",
            "servers": ["notes"],
            "approve": ["notes/*"],
            "model": "generic.new",
        },
        "deployer": {
            "description": "Deploys code.",
            "model": "generic.qwen3",
            "instruction": "You deploy code.\nLook at the script first.\n",
            "default_params": {"temperature": 0.2, "max_tokens": 4096, "topP": 0.9, "stop": ["</deploy>"]},
        },
        "flat": {"model": "generic.a", "instruction": "You are flat."},
        "listed": {"instruction": "You are listed."},
        "own": {"instruction": "You are own."},
    }
    no_project = "agents have no project; name its MCP servers in the key 'servers'"
    left_out = "left out, it has no counterpart here"
    assert [line.partition("new.yaml:")[2] for line in ran.err.splitlines()] == [
        f"7: spec.project: {left_out} ({no_project}); agents: deployer, old (line 22)",
        f"8: spec.proxyModelName: {left_out} (calls of an agent's model pass no proxy model); agents: deployer",
        f"9: spec.extras: {left_out} ({NO_WORD}); agents: deployer",
        f"18: spec.defaultParams.messages: {left_out} (the history is sent with each call); agents: deployer",
        f"27: metadata.labels: {left_out} ({NO_WORD}); agents: listed",
        f"27: status: {left_out} (the gateway sets it); agents: listed",
    ]
    again = apply(run, project, DOCUMENT)
    assert (again.code, again.out, again.err) == (0, "agents.yaml: nothing changes\n", ran.err)


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("kind: llm\nmetadata: {name: a}\n", ["1: kind: only documents of the kind 'agent' can be applied"]),
        ("kind: agent\nspec: {systemPrompt: x}\n", ["1: kind: has no name: write metadata: {name: …}"]),
        (
            "kind: agent\nmetadata: {name: a}\nspec:\n  sytemPrompt: x\n",
            ["4: spec.sytemPrompt: unknown field (did you mean 'systemPrompt'?)"],
        ),
        (
            "kind: agent\nmetadata: {name: a}\nspec:\n  systemPrompt: x\n  llm: {id: 7}\n",
            ["5: spec.llm: must be a name, or a mapping with the key 'name'"],
        ),
        ("kind: agent\nmetadata: {name: a}\nspec: [x]\n", ["3: spec: must be a mapping (indented 'key: value' lines)"]),
        (
            "kind: agent\nmetadata: {name: a}\nspec:\n  systemPrompt: Say ${HOME}.\n",
            [
                "4: spec.systemPrompt: has ${HOME}, which is text there and an environment variable here; write it in "
                "another way"
            ],
        ),
        (
            "kind: agent\nmetadata: {name: a}\nspec: {systemPrompt: x}\n---\nagents: {a: {instruction: y}}\n",
            ["5: agents.a: this agent is already on line 2; keep one of them"],
        ),
        (
            "kind: agent\nmetadata: {name: a}\nspec:\n  systemPrompt: x\n  defaultParams:\n    temperature: 3\n"
            "    maxTokens: 1\n    max_tokens: 1\n",
            [
                "6: agents.a.default_params.temperature: must be at most 2",
                "7: agents.a.default_params.maxTokens: is another name of 'max_tokens', which is given as well; keep "
                "one of them",
            ],
        ),
    ],
)
def test_problems_have_their_lines_and_nothing_is_written(
    text: str, problems: list[str], run: Command, project: Path
) -> None:
    ran = apply(run, project, text, "--yes")
    assert ran.code == 2
    found = [line.partition("new.yaml:")[2] for line in ran.err.splitlines() if line != NOT_WRITTEN]
    assert found == problems
    assert (project / "agents.yaml").read_text() == BEFORE


NOT_WRITTEN = "nothing was written; this would be wrong:"


def test_a_dry_run_shows_and_checks_the_changes_and_writes_nothing(run: Command, project: Path) -> None:
    text = "agents: {old: {instruction: You are other.}}"
    ran = apply(run, project, text, "--dry-run")
    assert (ran.code, ran.err) == (0, "nothing was written: --dry-run\n")
    assert "+    instruction: You are other." in ran.out
    wrong = apply(run, project, "agents: {old: {instruction: x, max_iterations: 0}}", "--dry-run")
    assert (wrong.code, "must be at least 1" in wrong.err) == (2, True)
    assert (project / "agents.yaml").read_text() == BEFORE
