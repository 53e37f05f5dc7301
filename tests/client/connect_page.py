"""docs/use/connect.md: the texts of `pallas-gateway connect`, without and with a token."""

from pallas_gateway.client.connect import ConnectedProgram, Target, programs


def markdown() -> str:
    """Return docs/use/connect.md."""
    agent = Target("research", "http://localhost:24200/agents/research/mcp", "http://localhost:24200")
    remote = "https://agents.example.com"
    guarded = Target("research", f"{remote}/agents/research/mcp", remote, needs_token=True)
    sections = [_section(program, agent, guarded) for program in programs()]
    titles = [program.title for program in programs() if program.signs_in]
    names = " and ".join([", ".join(titles[:-1]), titles[-1]])
    return "\n".join([_INTRODUCTION.format(signing_in=names), *sections])


def _section(program: ConnectedProgram, agent: Target, guarded: Target) -> str:
    texts = [program.filled(target) for target in (agent, guarded)]
    blocks = "\nWith a token:\n\n".join(f"```{program.language}\n{text}\n```\n" for text in texts)
    return f"## {program.title}\n\n{program.how}\n\n{blocks}"


_INTRODUCTION = """\
# Connecting programs

<!-- Made by `make docs` from features/console/static/clients.json. -->

For users of other programs: texts that connect a program to an agent. The [console](console.md) and `pallas-gateway
connect cursor research` show them with the URLs of a running gateway; `pallas-gateway connect` lists the programs.
Without an agent, the text is for the server of [all agents](clients.md#all-agents-behind-one-url).

Where people [sign in](sign-in.md), {signing_in} need no token: take the first text, and the program opens a page on
which you sign in (OAuth, with the metadata that the gateway names in its refusal). The authorization server must let
programs register themselves, or know them. All other programs need a key.
"""
