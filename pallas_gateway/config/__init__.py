"""The operator's files as checked, frozen values; the only package that reads them, and it starts nothing."""

from pallas_gateway.config.loading.configuration import Configuration
from pallas_gateway.config.loading.environment import config_path, load_dotenv_file
from pallas_gateway.config.loading.fastagent_file import DownstreamServer, FastAgentFile
from pallas_gateway.config.loading.loader import Overrides, load_deployment
from pallas_gateway.config.model.schema import AgentSettings, Deployment, GatewaySettings, ModelCapabilities
from pallas_gateway.config.problems import ConfigurationError, Problem
from pallas_gateway.config.yaml.source import UnsetVariable

__all__ = [
    "AgentSettings",
    "Configuration",
    "ConfigurationError",
    "Deployment",
    "DownstreamServer",
    "FastAgentFile",
    "GatewaySettings",
    "ModelCapabilities",
    "Overrides",
    "Problem",
    "UnsetVariable",
    "config_path",
    "load_deployment",
    "load_dotenv_file",
]
