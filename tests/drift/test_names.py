"""All names of libraries that do not fit are reported at once; in a process of its own, as the checks are replaced."""

import subprocess
import sys
from pathlib import Path

import pytest

WITH_OTHER_LIBRARIES = """
import sys

import openai
from fast_agent.agents.tool_runner import ToolRunner
from fast_agent.core.fastagent import FastAgent
from fast_agent.llm.provider.openai.responses import ResponsesLLM
from fast_agent.mcp import client_gateway
from fast_agent.mcp.mcp_connection_manager import MCPConnectionManager
from hypercorn.asyncio.task_group import TaskGroup
from mcp.server import runner
from openai import AsyncOpenAI
from fast_agent.agents import llm_decorator

async def advance(self): ...

del client_gateway._http_timeout, client_gateway.sse_client
del runner.serve_one, TaskGroup.spawn_app, MCPConnectionManager._suppress_mcp_sse_errors
del llm_decorator.CONTROL_MESSAGE_SAVE_HISTORY
FastAgent._build_model_factory_func = None
AsyncOpenAI._process_response_data = ResponsesLLM._default_transport_setting = lambda this: None
ToolRunner._advance_iteration = advance

from tests.drift.names import main

sys.exit(main())
"""

MISFITS = """\
required: pallas_gateway.doors.mcp.exchange: ImportError: cannot import name 'serve_one' from 'mcp.server.runner'
required: pallas_gateway.process.http_connections.inbox: TaskGroup.spawn_app is missing or has changed
required: pallas_gateway.repairs.fast_agent.save_history: fast_agent.agents.llm_decorator.CONTROL_MESSAGE_SAVE_HISTORY \
is missing or has changed
required: pallas_gateway.repairs.openai.websocket_per_call: ResponsesLLM._default_transport_setting \
is missing or has changed
required: pallas_gateway.runtime.preparation: MCPConnectionManager._suppress_mcp_sse_errors \
is missing or has changed
required: pallas_gateway.runtime.preparation: ToolRunner._advance_iteration does not read _request_params
required: pallas_gateway.runtime.preparation: fast_agent.mcp.client_gateway._http_timeout \
is missing or has changed
required: pallas_gateway.runtime.preparation: fast_agent.mcp.client_gateway.sse_client \
is missing or has changed
fast path off: pallas_gateway.fast_paths.model_factories: FastAgent._build_model_factory_func is missing or has changed
fast path off: pallas_gateway.fast_paths.openai_chunks: AsyncOpenAI._process_response_data is missing or has changed
"""


@pytest.mark.whole("unit/changes/test_registry.py::test_a_repair_that_does_not_fit_stops_before_anything_is_replaced")
def test_every_misfit_is_one_line() -> None:
    program = [sys.executable, "-c", WITH_OTHER_LIBRARIES]
    ran = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout == MISFITS
