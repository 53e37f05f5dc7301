"""A stdio server as people write them, for the row `stdio`: it imports a library and has one tool."""

from fastmcp import FastMCP

from benchmarks.fakes.downstream import FACT

server = FastMCP("facts")


@server.tool
def lookup_fact(topic: str) -> str:
    """Look up a fact about a topic."""
    del topic
    return FACT


if __name__ == "__main__":
    server.run(show_banner=False)
