"""Faults of fast-agent's class for Amazon Bedrock. They are mended where boto3 is installed; it is optional."""
